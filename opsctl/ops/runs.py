"""Runs on a target, whatever they run: start, show, follow, wait, stop. Never prints."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from opsctl.errors import Disconnected, ProtocolError, TimedOut, Unreachable
from opsctl.ops.jobs import reconnecting
from opsctl.ops.starting import starting
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json, to_json
from opsctl.records.run import RunRecord, RunSpec, RunStatus
from opsctl.target.command import Secret

_LINK_LOST = (Disconnected, Unreachable)


def start(
    workspace: Workspace,
    spec: RunSpec,
    *,
    secrets: Mapping[str, Secret] | None = None,
    has_placeholders: bool = False,
    has_cache: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RunRecord:
    """Start a run; raises Busy, UsageError, MissingTool, or what kept the job from starting.

    `has_placeholders`: {run}, {data}, {code} and {cache} in the command are filled in on the target.
    `has_cache`: the run gets the live compile cache of its environment. `say` gets what is worth knowing meanwhile,
    such as a dead run whose GPU was taken over.
    """
    request = {"spec": to_json(spec), "placeholders": has_placeholders, "cache": has_cache}

    def told(message: dict[str, Any]) -> None:
        say(message["text"])

    uploads = secret_uploads(secrets or {})
    with starting(spec.name, say):
        return from_json(RunRecord, workspace.client.call("run-start", request, uploads=uploads, on_progress=told))


def secret_uploads(secrets: Mapping[str, Secret]) -> tuple[bytes, ...]:
    """What a call that starts a run uploads: the values of its secrets, and nothing where there are none."""
    values = {name: secret.reveal() for name, secret in secrets.items()}
    return (json.dumps(values).encode(),) if values else ()


def listing(workspace: Workspace, *, kind: str | None = None) -> list[RunStatus]:
    """The runs on the target, newest first."""
    found = workspace.client.call("run-list", {"kind": kind})
    return [from_json(RunStatus, one) for one in found]


def status(workspace: Workspace, run: str = "") -> RunStatus:
    """One run's status; raises UsageError where `run` means none."""
    return from_json(RunStatus, workspace.client.call("run-status", {"run": run}))


def attach_argv(workspace: Workspace, run: str = "") -> tuple[str, ...]:
    """The local argv that shows the run's pane on this terminal; raises CheckFailed where it has none any more."""
    argv = workspace.client.call("run-attach", {"run": run})
    return workspace.target.interactive_argv(tuple(argv))


def stop(
    workspace: Workspace,
    run: str = "",
    *,
    grace_s: float | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> RunStatus:
    """End a run and wait until no process of it is left."""

    def told(message: dict[str, Any]) -> None:
        if on_progress:
            on_progress(message["text"])

    request = {"run": run, "grace_s": grace_s}
    return from_json(RunStatus, workspace.client.call("run-stop", request, on_progress=told))


def wait(workspace: Workspace, run: str = "", *, timeout_s: float | None = None) -> RunStatus:
    """The status once the run is over, lost, hung or eager; a lost link is taken up again.

    Raises TimedOut after `timeout_s`, while the run goes on.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    run = status(workspace, run).run.run_id  # a name may mean another run after a link was lost

    again = reconnecting()

    def ask() -> RunStatus:
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s < 0 and again.statistics["attempt_number"] > 1:
            raise TimedOut(f"run {run} could not be asked for its end in time", hint="the link to the target is down")
        request = {"run": run, "timeout_s": left_s, "asked_s": timeout_s}
        return from_json(RunStatus, workspace.client.call("run-wait", request))

    return again(ask)


# --- log -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogPiece:
    """Bytes of a run's log and where they lie in it."""

    start: int
    end: int
    data: bytes


@dataclass(frozen=True)
class LogPlace:
    """Where reading begins: at byte `start`, or at the last `num_rows` rows, or at the begin."""

    start: int | None = None
    num_rows: int | None = None


def log(
    workspace: Workspace,
    run: str = "",
    *,
    place: LogPlace = LogPlace(),
    follow: bool = False,
    on_link: Callable[[str], None] | None = None,
) -> Generator[LogPiece, None, None]:
    """The log's bytes in order, with `follow` until the run ends; after a lost link none is missing or repeated.

    `on_link` gets a sentence when a link is lost. A first contact that fails raises TargetError.
    """
    run = status(workspace, run).run.run_id
    pauses = _pauses_s()
    while True:
        try:
            for message in _log_messages(workspace, run, place, follow=follow):
                piece = _piece(message)
                if piece is None:
                    return
                place = LogPlace(start=piece.end)
                pauses = _pauses_s()
                yield piece
            raise ProtocolError("run-logs ended without a result")
        except _LINK_LOST as error:
            if not follow:
                raise
            if on_link:
                on_link(error.message)
            time.sleep(next(pauses))


def _pauses_s() -> Generator[float, None, None]:
    pause_s = 0.2
    while True:
        yield pause_s
        pause_s = min(5.0, 2 * pause_s)


def _log_messages(
    workspace: Workspace, run: str, place: LogPlace, *, follow: bool
) -> Generator[dict[str, Any], None, None]:
    request = {"run": run, "start": place.start, "rows": place.num_rows, "follow": follow}
    yield from workspace.client.stream("run-logs", request)


def _piece(message: dict[str, Any]) -> LogPiece | None:
    """The bytes in a message, None for the last one."""
    if message["type"] == "result":
        return None
    record = message["record"]
    return LogPiece(record["start"], record["end"], base64.b64decode(record["data"]))
