"""`opsctl watch`: one run as a live screen, as rows of text or as JSON, until it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, named, workspace
from opsctl.errors import UsageError
from opsctl.records.call import SCHEMA, to_json

if TYPE_CHECKING:
    from opsctl.ops.pane import Pane
    from opsctl.ops.watch_state import WatchEvent, WatchState
    from opsctl.ops.workspace import Workspace

    Step = tuple[WatchEvent, WatchState]


def watch(
    run: Annotated[
        str,
        typer.Argument(callback=named, help="Id or name of the run; default: the newest live one, else the newest."),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Show how the run is now, and exit by its verdict.")] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="End with 1 as soon as the run crashed, hangs or fell back to eager.")
    ] = False,
    save_baseline: Annotated[
        str, typer.Option("--save-baseline", help="Keep this good run's memory and speed under a name, and end.")
    ] = "",
    session: Annotated[
        str, typer.Option("--session", help="Watch a tmux session that opsctl did not start: NAME or NAME:WINDOW.PANE.")
    ] = "",
    socket: Annotated[
        str, typer.Option("--socket", help="That session's tmux socket; default: the target user's own.")
    ] = "",
    baseline: Annotated[
        str, typer.Option("--baseline", help="With --session: a good run's figures to compare with, by their name.")
    ] = "",
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Watch a run live: verdict with evidence, progress, GPUs and log, until it ends.

    The exit code is 0 finished (--once: or all well), 1 crashed, hung, degraded or eager, 4 unknown, 75 stopped.

    Example: opsctl watch

    Example: opsctl watch --once --json

    Example: opsctl watch --session train -t gpu

    Example: opsctl watch drafter --save-baseline good
    """
    from opsctl.ops.pane import Pane
    from opsctl.ops.watch_state import exit_code

    pane = Pane(session, socket, baseline=baseline)
    _refuse(run, pane, save_baseline)
    space = workspace(config, target)
    if save_baseline:
        _save_baseline(space, run, save_baseline, as_json=as_json)
        return
    events = _pane_events(space, pane, once=once) if session else _run_events(space, run, once=once)
    with (
        contextlib.closing(events),
        contextlib.closing(_steps(events, space.target.name, fail_fast=fail_fast)) as steps,
    ):
        try:
            state = _view(once=once, as_json=as_json)(steps)
        except KeyboardInterrupt:
            ui.say("stopped watching; the run itself goes on")
            raise
    raise typer.Exit(exit_code(state.verdict.verdict))


def _refuse(run: str, pane: Pane, save_baseline: str) -> None:
    """Raise UsageError for options that do not go together."""
    if run and pane.session:
        raise UsageError("a run and --session exclude each other", hint="leave one of them out")
    if (pane.socket or pane.baseline) and not pane.session:
        raise UsageError(
            "--socket and --baseline need --session beside them", hint="a run compares with the job's own `baseline:`"
        )
    if save_baseline and pane.session:
        raise UsageError("--save-baseline keeps a run's figures, not a session's", hint="leave --session out")


def _save_baseline(space: Workspace, run: str, name: str, *, as_json: bool) -> None:
    from opsctl.cli.gauges import gib, significant
    from opsctl.ops.baseline import save

    saved = save(space, name, run)
    if as_json:
        ui.document(saved)
        return
    figures = saved.figures
    told = [f"{significant(figures.step_s)} s a step"] if figures.step_s else []
    told += [f"up to {gib(figures.used_mib)} of GPU memory"] if figures.used_mib else []
    ui.text(f"baseline {saved.name} is run {saved.run_id}: {', '.join(told) or 'its speed'}")
    ui.say(f"compare: opsctl train start JOB --baseline {saved.name}, or `baseline: {saved.name}` in the job")


def _run_events(space: Workspace, run: str, *, once: bool) -> Generator[WatchEvent, None, None]:
    from opsctl.ops import watch as runs

    return runs.look(space, run) if once else runs.watch(space, run)


def _pane_events(space: Workspace, pane: Pane, *, once: bool) -> Generator[WatchEvent, None, None]:
    from opsctl.ops import pane as panes

    return panes.look(space, pane) if once else panes.watch(space, pane)


def _steps(events: Iterable[WatchEvent], target: str, *, fail_fast: bool) -> Generator[Step, None, None]:
    """Each event with the state after it; ends early where a failing verdict is the end."""
    from opsctl.ops.watch_state import WatchState, observe
    from opsctl.records.verdict import FAILING

    state = WatchState(target)
    for event in events:
        state = observe(state, event)
        yield event, state
        if fail_fast and state.is_caught_up and state.verdict.verdict in FAILING:
            return


def _view(*, once: bool, as_json: bool) -> Callable[[Iterator[Step]], WatchState]:
    """What shows the steps, and returns the last state."""
    if once:
        return _once_json if as_json else _once
    if as_json:
        return _json_lines
    return _live if ui.is_screen() else _plain


def _last(steps: Iterable[Step]) -> WatchState:
    *_, (_, state) = steps  # never empty: a stream begins with a status, or raises
    return state


def _json_lines(steps: Iterator[Step]) -> WatchState:
    for event, state in steps:  # noqa: B007 - the last state is the answer
        ui.json_line(event_json(event))
    return state


def event_json(event: WatchEvent) -> dict[str, Any]:
    """One row of `--json`: the event's name, when it was seen, and the record's own fields."""
    return {"schema": SCHEMA, "event": event.kind, "time": event.time, **event.record}


def _once(steps: Iterator[Step]) -> WatchState:
    from opsctl.cli.screen import End

    state = _last(steps)
    ui.show(End(state, time.time()))
    return state


def _once_json(steps: Iterator[Step]) -> WatchState:
    state = _last(steps)
    ui.document(state_json(state))
    return state


def state_json(state: WatchState) -> dict[str, Any]:
    """The one document of `--once --json`: the status with findings, last metrics and last rows of the log."""
    from opsctl.cli.train_view import status_json

    status = status_json(state.status) if state.status else {}
    rows = [row.text for row in state.log_rows]
    last = state.metrics[-1] if state.metrics else None
    return {**status, "target": state.target, "findings": to_json(state.findings), "metrics": last, "log": rows}


def _plain(steps: Iterator[Step]) -> WatchState:
    from opsctl.cli.plain import PlainRows

    rows = PlainRows()
    for event, state in steps:
        for row in rows.after(state, event):
            ui.text(row)
    return state


def _live(steps: Iterator[Step]) -> WatchState:
    from opsctl.cli.screen import End, Screen

    _, newest = next(steps)
    with ui.live(Screen(lambda: newest, time.time)) as draw:
        for event, newest in steps:  # noqa: B007 - the screen reads `newest` whenever it is drawn
            if event.kind in ("status", "verdict", "link", "exit"):
                draw()
    ui.show(End(newest, time.time()))
    return newest
