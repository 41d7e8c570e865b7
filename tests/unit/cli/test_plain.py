"""A watch without a terminal says each change once."""

from __future__ import annotations

import pytest

from opsctl.cli.plain import PlainRows
from opsctl.ops.watch_state import WatchEvent, WatchState, observe
from tests.support import recorded


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    recorded.use_utc()


def _said(events: list[WatchEvent]) -> list[str]:
    state, rows, said = WatchState("here"), PlainRows(), []
    for event in events:
        state = observe(state, event)
        said += rows.after(state, event)
    return said


def test_a_crash_is_told_with_cause_evidence_advice_and_log() -> None:
    said = _said(list(recorded.events("crashed-by-exception")))
    assert said[0] == "17:00:00  drafter-20251129-170000 on here: running"
    assert said[1].endswith(
        "python_exception: ValueError: no supervised slot in this batch (/srv/code/trainer/loss.py:41)"
    )
    assert said[2].startswith("17:00:50  CRASHED python_exception (confidence 98%)  step 41/200")
    assert [row.strip()[:2] for row in said[3:6]] == ["- ", "- ", "->"]
    assert said[-1].strip() == "| ValueError: no supervised slot in this batch"


def test_a_lost_link_is_unknown_and_then_what_it_was() -> None:
    events = list(recorded.events("link-down-eight-gpus"))
    back = [WatchEvent(events[-1].time + 3, "link", {"is_up": True, "problem": ""})]
    back += [WatchEvent(back[0].time, "caught_up", {})]
    said = [row.split()[1] for row in _said(events + back) if row[:1].isdigit()]
    assert said[-2:] == ["UNKNOWN", "HEALTHY"]


def test_progress_is_told_every_ten_seconds_at_most() -> None:
    events = list(recorded.events("healthy-three-gpus"))
    verdict = next(event for event in reversed(events) if event.kind == "verdict")
    later = [WatchEvent(events[-1].time + n, "verdict", {**verdict.record, "step": 2000 + n}) for n in range(1, 31)]
    said = _said(events + later)
    assert len(said) == len(_said(events)) + 3
    assert "step 2010/5000" in said[-3]
