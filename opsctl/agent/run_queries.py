"""Verbs run-list, run-status and run-wait: what runs do, once or until it matters."""

from __future__ import annotations

import os
import time
from pathlib import Path

from opsctl.agent import tmux
from opsctl.agent.home import RunPaths
from opsctl.agent.processes import user_name
from opsctl.agent.run_state import all_runs, find, status
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed, CommandFailed, TimedOut
from opsctl.records.run import RunStatus

LIST_LIMIT = 50
POLL_S = 0.1
# verdicts of a live run that are news enough to stop waiting for its end
ALARMS = ("hung", "eager_fallback")
ENDED = ("over", "lost")


def status_of(paths: RunPaths) -> RunStatus:
    """The status of a run that is there."""
    found = status(paths)
    if found is None:
        raise CommandFailed(f"{paths.folder} was removed in the meantime")
    return found


def list_runs(call: Call) -> list[RunStatus]:
    """The newest runs first; `kind` and `limit` narrow the list."""
    kind = call.request.get("kind")
    limit = call.request.get("limit") or LIST_LIMIT
    runs = [run for run in all_runs(call.home) if kind in (None, run.spec.kind)][:limit]
    return [found for run in runs if (found := status(call.home.run(run.run_id))) is not None]


def show_status(call: Call) -> RunStatus:
    """One run's status."""
    return status_of(find(call.home, call.request.get("run", "")))


def is_done_waiting(found: RunStatus) -> bool:
    """Whether there is no more to wait for: the run ended, or its verdict asks for a person."""
    return found.state in ENDED or found.verdict.verdict in ALARMS


def wait(call: Call) -> RunStatus:
    """The status once the run is over, lost, hung or eager; raises TimedOut after `timeout_s`."""
    paths = find(call.home, call.request.get("run", ""))
    timeout_s = call.request.get("timeout_s")  # what is left of `asked_s`
    deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
    while True:
        found = status_of(paths)
        if is_done_waiting(found):
            return found
        if time.monotonic() >= deadline:
            raise TimedOut(
                f"run {found.run.run_id} is {found.verdict.verdict} after {call.request['asked_s']:g} s and goes on",
                hint="wait again, or look at it with `opsctl watch`",
            )
        time.sleep(POLL_S)


def _refuse_strangers_terminal(found: RunStatus) -> None:
    """Raise CheckFailed where the run's tmux server is another user's, which lets nobody else in."""
    try:
        user = Path(found.run.socket).stat().st_uid
    except OSError:  # gone with its server
        return
    if os.geteuid() not in (0, user):
        raise CheckFailed(
            f"the terminal of run {found.run.run_id} is Unix user {user_name(user)}'s, and tmux lets nobody else in",
            hint="`opsctl train logs -f` and `opsctl watch` follow the run",
        )


def attach(call: Call) -> list[str]:
    """The command that shows the run's pane on a terminal of the target; raises CheckFailed where there is none."""
    found = show_status(call)
    if found.state in ENDED:
        raise CheckFailed(f"run {found.run.run_id} is {found.state}", hint="`opsctl train logs` shows what it wrote")
    _refuse_strangers_terminal(found)
    if not tmux.is_serving(found.run.socket):
        raise CheckFailed(
            f"the tmux server of run {found.run.run_id} is gone; the run itself goes on",
            hint="`opsctl train logs -f` follows it",
        )
    return list(tmux.attach_argv(found.run.socket, found.run.session))
