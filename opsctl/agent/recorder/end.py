"""How an attempt ended: its status, what the control group counted, and what the job says of itself in result.json."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from opsctl.records.events import End
from opsctl.records.run import Attempt
from opsctl.records.verdict import Verdict

RESULT_NAME = "result.json"
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126  # what a shell says of a program that it cannot start
_LIMIT_BYTES = 1 << 20


def end_of(status: int, now: float, *, stop_requested: bool, oom_killed: bool | None, folder: Path) -> End:
    """The end that a wait status tells of; `folder` is where the job writes its result, if it writes one."""
    code = os.waitstatus_to_exitcode(status)
    return End(
        now,
        code if code >= 0 else None,
        -code if code < 0 else None,
        stop_requested,
        oom_killed,
        checkpoint_of(folder),
    )


def attempt_of(number: int, started: float, end: End, verdict: Verdict) -> Attempt:
    """What the exit record keeps of an attempt."""
    return Attempt(
        number=number,
        started=started,
        ended=end.time,
        exit_code=end.exit_code,
        signal=end.signal,
        last_step=verdict.step,
        cause=verdict.cause,
        stop_requested=end.stop_requested,
    )


def never_started(number: int, started: float, now: float, error: OSError) -> Attempt:
    """What the exit record keeps of an attempt whose program could not be started."""
    code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
    return Attempt(number, started, now, code, None, cause="bad_arguments")


def checkpoint_of(folder: Path) -> str:
    """The checkpoint that the job's result names, "" where it names none or wrote no result."""
    with contextlib.suppress(OSError, ValueError):  # no such file, or one that is no JSON: a job owes us none
        with (folder / RESULT_NAME).open("rb") as file:
            result = json.loads(file.read(_LIMIT_BYTES))
        named = result.get("checkpoint") if isinstance(result, dict) else None
        return named if isinstance(named, str) else ""
    return ""
