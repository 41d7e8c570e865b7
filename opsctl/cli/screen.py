"""The watch screen as a whole: shares the rows of a terminal out among the panels. Pure; prints nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from opsctl.cli import machine, panels
from opsctl.cli.frame import QUIET, Frame, rule
from opsctl.ops.watch_state import WatchState

_MIN_LOG_ROWS = 3
_MAX_FINDINGS = 8
_MAX_END_ROWS = 16
_MAX_END_WIDTH = 160


def draw(state: WatchState, *, now: float, width: int, height: int, is_ascii: bool = False) -> list[Text]:
    """The screen's rows, at most `height`, each at most `width` wide; `now` is the operator's clock."""
    frame = Frame(width, now - state.clock_ahead_s, is_ascii)
    gap = [Text()] if height >= 30 else []
    head = [panels.title(state, frame), *panels.verdict(state, frame, max(2, height // 3)), *gap]
    head += panels.progress(state, frame)
    room = height - len(head)
    device = _device(state, frame, max(3, room - 2 * _MIN_LOG_ROWS), gap)
    room -= len(device)
    noticed = _noticed(state, frame, min(_MAX_FINDINGS, max(1, room // 3 - 1)), gap) if room > 2 + len(gap) else []
    room -= len(noticed)
    return _plainer((head + device + noticed + _log(state, frame, room, gap))[:height], is_ascii=is_ascii)


def _plainer(rows: list[Text], *, is_ascii: bool) -> list[Text]:
    """The rows as a terminal without UTF-8 can show them."""
    for row in rows if is_ascii else ():
        row.plain = row.plain.encode("ascii", "replace").decode()
    return rows


def _device(state: WatchState, frame: Frame, room: int, gap: list[Text]) -> list[Text]:
    rows = machine.gpus(state, frame, max(2, room - 2 - len(gap)))
    return [*gap, rule(frame, machine.heading(state, frame)), *rows, machine.job(state, frame)]


def _noticed(state: WatchState, frame: Frame, max_rows: int, gap: list[Text]) -> list[Text]:
    rows = panels.findings(state, frame, max_rows)
    return [*gap, rule(frame, "findings"), *rows] if rows else []


def _log(state: WatchState, frame: Frame, room: int, gap: list[Text]) -> list[Text]:
    head = [*gap, rule(frame, "log")]
    return head + panels.log(state, frame, room - len(head)) if room > len(head) else []


def draw_end(state: WatchState, *, now: float, width: int, height: int, is_ascii: bool = False) -> list[Text]:
    """What stays on the terminal after the screen is gone, on about one page: how the run is, and why."""
    frame = Frame(width, now - state.clock_ahead_s, is_ascii)
    rows = [panels.title(state, frame), *panels.verdict(state, frame, _MAX_END_ROWS), *panels.progress(state, frame)]
    if noticed := panels.findings(state, frame, _MAX_FINDINGS):
        rows += [rule(frame, "findings"), *noticed]
    room = 5 if state.verdict.verdict in QUIET else min(_MAX_END_ROWS, height - len(rows) - 3)
    rows += [rule(frame, "log"), *panels.log(state, frame, max(_MIN_LOG_ROWS, room))]
    return _plainer(rows, is_ascii=is_ascii)


@dataclass(frozen=True)
class Screen:
    """A renderable that asks for the newest state, and for the time, each time it is drawn."""

    state: Callable[[], WatchState]
    clock: Callable[[], float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The screen for the console's size of this moment."""
        rows = draw(
            self.state(),
            now=self.clock(),
            width=options.max_width,
            height=options.height or console.height,
            is_ascii=options.ascii_only,
        )
        yield Text("\n", no_wrap=True, overflow="crop", end="").join(rows)


@dataclass(frozen=True)
class End:
    """A renderable for what stays: the state as it is, at a width that people read."""

    state: WatchState
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The rows of `draw_end`."""
        width = min(options.max_width, _MAX_END_WIDTH)
        rows = draw_end(self.state, now=self.now, width=width, height=console.height, is_ascii=options.ascii_only)
        yield Text("\n", no_wrap=True, overflow="crop").join(rows)
