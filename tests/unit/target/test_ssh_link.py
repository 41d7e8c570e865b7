"""When a link counts as silent: decided from times alone."""

from __future__ import annotations

import pytest

from opsctl.target.ssh_link import SILENCE_LIMIT_S, SilenceWatch


def _looks(watch: SilenceWatch, until_s: float, *, heard: float = 0.0, in_use: bool = True, period_s: float = 0.25):
    now = watch.looked
    while now < until_s:
        now += period_s
        yield round(now, 2), watch.look(now, heard=heard, in_use=in_use)


def test_a_silent_link_is_asked_once_and_then_lost() -> None:
    verdicts = [(now, verdict) for now, verdict in _looks(SilenceWatch(0.0), 6.0) if verdict]
    assert [verdict for _, verdict in verdicts[:2]] == ["ask", "lost"]
    assert verdicts[1][0] <= 4.25


def test_an_answer_to_the_question_keeps_the_link() -> None:
    watch = SilenceWatch(0.0)
    assert [verdict for _, verdict in _looks(watch, 4.0) if verdict] == ["ask"]
    assert [verdict for _, verdict in _looks(watch, 5.5, heard=4.0) if verdict] == []
    assert [verdict for _, verdict in _looks(watch, 6.5, heard=4.0) if verdict] == ["ask"]


def test_a_link_that_nobody_uses_is_left_alone_and_gets_a_new_start() -> None:
    watch = SilenceWatch(0.0)
    assert [verdict for _, verdict in _looks(watch, 60.0, in_use=False) if verdict] == []
    assert [verdict for _, verdict in _looks(watch, 61.0) if verdict] == []


def test_our_own_pause_is_not_the_links() -> None:
    """A process that was stopped for a minute has heard nothing, and could not have."""
    watch = SilenceWatch(0.0)
    assert watch.look(60.0, heard=0.0, in_use=True) == ""
    assert [verdict for _, verdict in _looks(watch, 62.0) if verdict] == ["ask"]
    assert [verdict for _, verdict in _looks(watch, 66.0, heard=62.0) if verdict] == ["ask"]


@pytest.mark.parametrize("stopped_s", [0.5, 1.9, 2.1, 3.0, 30.0])
def test_a_silent_link_is_lost_soon_after_our_own_pause(stopped_s: float) -> None:
    """A machine so busy that nobody looks for seconds does not wait for the whole limit once more."""
    watch = SilenceWatch(0.0)
    assert [verdict for _, verdict in _looks(watch, 1.0) if verdict] == []
    verdicts = [(1.0 + stopped_s, watch.look(1.0 + stopped_s, heard=0.0, in_use=True))]
    verdicts += _looks(watch, 1.0 + stopped_s + SILENCE_LIMIT_S)
    lost_at = next(now for now, verdict in verdicts if verdict == "lost")
    assert lost_at <= max(SILENCE_LIMIT_S, 1.0 + stopped_s + 2.5) + 0.5


@pytest.mark.parametrize("heard", [0.5, 1.0, 1.5])
def test_a_link_with_traffic_is_never_asked(heard: float) -> None:
    watch = SilenceWatch(0.0)
    for now in (0.5, 1.0, 1.5, 2.0):  # as close together as beats under load
        assert watch.look(now, heard=min(now, heard), in_use=True) == ""
