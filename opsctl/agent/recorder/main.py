"""The pane's command, `AGENT job recorder RUN_DIR`: prepares this process and runs the recorder to its end."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
import traceback
from dataclasses import replace
from pathlib import Path

from opsctl.agent.files import file_mode, read_record, write_record
from opsctl.agent.home import RunPaths
from opsctl.agent.main import agent_argv, as_opsctl_error
from opsctl.agent.processes import RUN_ID_VARIABLE, identity
from opsctl.agent.recorder.recorder import Recorder
from opsctl.agent.recorder.secrets import read_once
from opsctl.agent.recorder.spawn import RUN_DIR_VARIABLE, become_subreaper
from opsctl.errors import CommandFailed, MissingTool, OpsctlError
from opsctl.records.run import RunRecord


def _redirect_errors(path: Path) -> None:
    """What this process says about itself goes to a file, not to the job's screen."""
    with contextlib.suppress(OSError):  # disk full: then it is not said
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, file_mode(path.parent))
        os.dup2(descriptor, 2)
        os.close(descriptor)
    faulthandler.enable(2)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # disk full: then it is not said
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.write(2, f"{stamp} {text}\n".encode())


def cannot_start(argv: tuple[str, ...], error: OSError) -> OpsctlError:
    """The error that tells why a program did not start."""
    if isinstance(error, FileNotFoundError):
        return MissingTool(
            f"{argv[0]} cannot be started on the target: no such program",
            hint="check its name and the PATH there; a script needs the program in its first line too",
        )
    if isinstance(error, PermissionError):
        return CommandFailed(f"{argv[0]} cannot be started on the target: it is not executable", hint="chmod +x it")
    return CommandFailed(f"{argv[0]} cannot be started on the target: {error.strerror}")


def _refuse(paths: RunPaths, error: OpsctlError) -> None:
    body = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    with contextlib.suppress(OSError):  # disk full: the starter sees that we are gone
        write_record(paths.error, body)


def _prepare(paths: RunPaths) -> tuple[RunRecord, dict[str, str]]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the pane may go, the run goes on
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _redirect_errors(paths.recorder_log)
    for name in (RUN_ID_VARIABLE, RUN_DIR_VARIABLE):
        os.environ.pop(name, None)
    os.chdir(paths.folder)
    become_subreaper()
    found = read_record(RunRecord, paths.record)
    if found is None:
        raise CommandFailed(f"{paths.record} is missing")
    record = replace(found, recorder=identity(os.getpid()))
    write_record(paths.record, record)
    return record, read_once(paths.secrets) if record.spec.secret_names else {}


def record(arguments: list[str]) -> int:
    """Record the run in the folder that the one argument names."""
    paths = RunPaths(Path(arguments[0]))
    try:
        run, secrets = _prepare(paths)
        recorder = Recorder(paths, run, secrets=secrets, agent_argv=agent_argv(), complain=_complain)
        reason = recorder.run()
    except Exception as error:
        _complain("".join(traceback.format_exception(error)))
        _refuse(paths, as_opsctl_error(error))
        raise
    if reason is not None:
        _refuse(paths, cannot_start(run.spec.argv, reason))
        return 1
    return 0
