"""The watch screen looks as recorded, fits its terminal, and hands no control character to it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from opsctl.cli.screen import Screen, draw, draw_end
from opsctl.ops.watch_state import WatchState
from tests.support import recorded

CASES = sorted(path.stem for path in recorded.FOLDER.glob("*.jsonl"))
SIZES = [(20, 5), (40, 10), (80, 24), (100, 30), (160, 50), (300, 80)]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    recorded.use_utc()


@pytest.mark.parametrize("path", recorded.expected_screens(), ids=lambda path: path.stem)
def test_screens_look_as_recorded(path: Path) -> None:
    assert recorded.drawn(path) == path.read_text()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("case", CASES)
def test_every_screen_fits_and_is_harmless(case: str, size: tuple[int, int]) -> None:
    state, now = recorded.folded(case)
    for is_ascii in (False, True):
        rows = draw(state, now=now, width=size[0], height=size[1], is_ascii=is_ascii)
        assert len(rows) <= size[1]
        assert max(row.cell_len for row in rows) <= size[0]
        assert all(row.plain.isprintable() for row in rows)
        assert not is_ascii or all(row.plain.isascii() for row in rows)


def test_a_state_that_knows_nothing_yet_can_be_drawn() -> None:
    rows = draw(WatchState("here"), now=0.0, width=80, height=24)
    assert rows[0].plain == "waiting for here"


def _bytes_on_terminal(case: str, **console: object) -> str:
    state, now = recorded.folded(case)
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=80, height=24, **console)  # type: ignore[arg-type]  # rich's many options
    terminal.print(Screen(lambda: state, lambda: now))
    return out.getvalue()


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b[1;31m" in _bytes_on_terminal("crashed-by-exception", color_system="standard")
    plain = _bytes_on_terminal("crashed-by-exception", no_color=True, color_system="standard")
    assert "\x1b[31m" not in plain
    assert "\x1b[1;31m" not in plain
    assert "CRASHED" in plain


def test_nothing_of_the_log_reaches_the_terminal_as_a_command() -> None:
    shown = _bytes_on_terminal("hostile-text", color_system=None)
    assert not any(bad in shown for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\r"))
    assert "owned" in shown  # its text is there, as text


def test_what_stays_on_the_terminal_names_cause_and_place() -> None:
    state, now = recorded.folded("crashed-by-exception")
    text = "\n".join(row.plain for row in draw_end(state, now=now, width=120, height=24))
    assert "CRASHED  python exception" in text
    assert "trainer/loss.py:41" in text
    assert "no supervised slot" in text.splitlines()[-1]


def test_a_healthy_run_whose_steps_have_stopped_says_for_how_long() -> None:
    state, now = recorded.folded("healthy-three-gpus")
    quiet = replace(state, verdict=replace(state.verdict, evidence=("no step for 28 s; odd after 6 s",), step_s=28.0))
    rows = [row.plain for row in draw(quiet, now=now, width=80, height=24)]
    assert any("no step for 28 s" in row for row in rows)
    assert any("28.0 s/step" in row for row in rows)
