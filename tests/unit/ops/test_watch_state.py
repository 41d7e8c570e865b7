"""The fold behind a watch: order, bounds, and the log however it is cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from opsctl.ops.watch_state import EXIT_CODES, HISTORY, KEPT_ROWS, Row, WatchEvent, WatchState, observe
from opsctl.records.verdict import VERDICTS
from tests.support import recorded

LOG = "one\n\x1b[31mtwo\x1b[0m\nbar 1%\rbar 50%\rbar 100%\nthree \u6bb5\u9519 \U0001f600\r\nfour\n"


def _fold(*events: WatchEvent, state: WatchState | None = None) -> WatchState:
    state = state or WatchState("here")
    for event in events:
        state = observe(state, event)
    return state


def _log(start: int, data: bytes) -> WatchEvent:
    return WatchEvent(1.0, "log", {"start": start, "end": start + len(data), "text": data.decode()})


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_the_log_reads_alike_however_it_is_cut(cuts: list[int]) -> None:
    places = sorted({0, *cuts, len(LOG)})
    state, start = WatchState("here"), 0
    for begin, end in itertools.pairwise(places):
        piece = LOG[begin:end].encode()
        state, start = observe(state, _log(start, piece)), start + len(piece)
    assert [row.text for row in state.log_rows] == ["one", "two", "bar 100%", "three \u6bb5\u9519 \U0001f600", "four"]


def test_a_row_not_ended_yet_is_shown_and_then_replaced() -> None:
    state = _fold(_log(0, b"step 1\nbar 5%\rbar 6"))
    assert state.log_rows == (Row("step 1"), Row("bar 6"))
    state = _fold(_log(19, b"0%\rdone\n"), state=state)
    assert [row.text for row in state.log_rows] == ["step 1", "done"]


def test_after_a_gap_in_the_log_reading_begins_anew() -> None:
    state = _fold(_log(0, b"half a ro"), _log(500, b"whole\n"))
    assert [row.text for row in state.log_rows][-1] == "whole"


def test_what_is_remembered_is_bounded() -> None:
    state = WatchState("here")
    for number in range(400):
        sample = {"time": float(number), "gpus": []}
        state = _fold(
            _log(number * 4, b"row\n"),
            WatchEvent(number, "sample", sample),
            WatchEvent(number, "metrics", {"step": number}),
            WatchEvent(number, "verdict", {"verdict": "healthy", "step": number}),
            state=state,
        )
    assert (len(state.rows), len(state.samples), len(state.metrics)) == (KEPT_ROWS, HISTORY, HISTORY)
    assert len(state.steps) <= 64


def test_a_lost_link_is_unknown_never_crashed_and_keeps_what_was_known() -> None:
    state, now = recorded.folded("link-down-eight-gpus")
    assert (state.shown_verdict.verdict, state.verdict.verdict) == ("unknown", "healthy")
    assert state.shown_verdict.step == state.verdict.step
    again = _fold(WatchEvent(now + 5, "link", {"is_up": False, "problem": "still"}), state=state)
    assert again.link_down_since == state.link_down_since
    up = _fold(WatchEvent(now + 9, "link", {"is_up": True, "problem": ""}), state=again)
    assert up.shown_verdict == state.verdict


def test_the_clock_of_the_target_may_differ() -> None:
    state = _fold(WatchEvent(0, "caught_up", {}), WatchEvent(1000.0, "sample", {"time": 400.0, "gpus": []}))
    assert state.clock_ahead_s == 600.0


def test_a_step_that_goes_back_starts_the_rate_anew() -> None:
    verdicts = [{"verdict": "healthy", "step": step} for step in (10, 20, 5)]
    state = _fold(*(WatchEvent(float(n), "verdict", one) for n, one in enumerate(verdicts)))
    assert state.steps == ((2.0, 5),)


def test_losses_of_verdicts_are_kept_one_a_step() -> None:
    verdicts = [{"verdict": "healthy", "step": step, "loss": loss} for step, loss in ((1, 4.0), (1, 4.0), (2, 3.0))]
    state = _fold(*(WatchEvent(float(n), "verdict", one) for n, one in enumerate(verdicts)))
    assert state.losses == (4.0, 3.0)


def test_kinds_of_a_later_version_change_nothing() -> None:
    assert _fold(WatchEvent(1.0, "weather", {"is_fine": True})) == WatchState("here")


def test_every_verdict_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(VERDICTS)


def test_a_phase_before_the_first_step_shows_how_far_it_is() -> None:
    row = {"phase": "verifier", "step": 20, "num_steps": 350}
    state = observe(WatchState("here"), WatchEvent(1.0, "metrics", row))
    assert state.preparation == "verifier 20/350"
