"""Recorded watches: the events in tests/data/screen, and the screens drawn from them.

`python -m tests.support.recorded` draws every expected screen anew, after a wanted change of the looks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from opsctl.cli.screen import draw
from opsctl.ops.watch_state import WatchEvent, WatchState, observe

FOLDER = Path(__file__).parents[1] / "data" / "screen"


def use_utc() -> None:
    """Make local time UTC, since screens show local times."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def events(case: str) -> Iterator[WatchEvent]:
    """The events of one recorded watch."""
    for row in (FOLDER / f"{case}.jsonl").read_text().splitlines():
        yield WatchEvent(**json.loads(row))


def folded(case: str) -> tuple[WatchState, float]:
    """The state after all events of a case, and the time of the last one."""
    state, now = WatchState("here"), 0.0
    for event in events(case):
        state, now = observe(state, event), event.time
    return state, now


def expected_screens() -> list[Path]:
    """Files named CASE.WIDTHxHEIGHT[-ascii].txt."""
    return sorted(FOLDER.glob("*.txt"))


def drawn(path: Path) -> str:
    """The screen that the file at `path` should hold: two seconds after the case's last event."""
    case, _, look = path.stem.rpartition(".")
    size, _, characters = look.partition("-")
    width, height = map(int, size.split("x"))
    state, now = folded(case)
    rows = draw(state, now=now + 2, width=width, height=height, is_ascii=characters == "ascii")
    return "".join(row.plain.rstrip() + "\n" for row in rows)


if __name__ == "__main__":
    use_utc()
    for expected in expected_screens():
        expected.write_text(drawn(expected))
