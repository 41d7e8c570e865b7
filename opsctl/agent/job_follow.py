"""Verb job-follow: how a long job of opsctl's own comes along, and in the end what it came to."""

from __future__ import annotations

import json
import time
from typing import Any

from opsctl.agent.home import RunPaths
from opsctl.agent.jobs import ERROR, METRICS, RESULT
from opsctl.agent.run_queries import ENDED, status_of
from opsctl.agent.run_state import find, last_rows
from opsctl.agent.run_watch import Rows
from opsctl.agent.session import Call
from opsctl.errors import CommandFailed, OpsctlError, error_named
from opsctl.records.run import RunStatus

_POLL_S = 0.1
_LOG_ROWS = 15
_BACKLOG_ROWS = 3


def follow(call: Call) -> Any:
    """Progress until the run of request["run"] ends, then the job's result; raises the error that it ended with."""
    paths = find(call.home, call.request["run"])
    rows = Rows(paths.folder / METRICS, backlog=_BACKLOG_ROWS)
    while True:
        found = status_of(paths)
        for row in rows.read():
            _tell(call, row)
        if found.state in ENDED:
            return _result(paths, found)
        time.sleep(_POLL_S)


def _tell(call: Call, row: dict[str, Any]) -> None:
    phase, text = row.get("phase"), row.get("text")
    if phase:
        call.session.progress(f"{phase}: {text}" if text else str(phase), done=row.get("done"), total=row.get("total"))


def _result(paths: RunPaths, found: RunStatus) -> Any:
    error, result = paths.folder / ERROR, paths.folder / RESULT
    if error.is_file():
        said = json.loads(error.read_text())
        raise error_named(said["kind"], said["message"], hint=said["hint"])
    attempt = found.exit.attempts[-1] if found.exit and found.exit.attempts else None
    if attempt is not None and attempt.exit_code == 0 and result.is_file():
        return json.loads(result.read_text())
    raise _died(paths, found)


def _died(paths: RunPaths, found: RunStatus) -> OpsctlError:
    attempt = found.exit.attempts[-1] if found.exit and found.exit.attempts else None
    how = found.message or "it ended without a result"
    if attempt is not None:
        how = f"killed by signal {attempt.signal}" if attempt.signal else f"ended with status {attempt.exit_code}"
    log = b"\n".join(last_rows(paths.log, _LOG_ROWS)).decode(errors="replace")
    return CommandFailed(f"run {paths.folder.name} {how}\n{log}".rstrip(), hint="nothing that stood before was changed")
