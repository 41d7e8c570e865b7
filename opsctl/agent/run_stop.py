"""Verb run-stop: the recorder ends its run; where the recorder is dead, this does it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from opsctl.agent.files import write_record
from opsctl.agent.home import Home, RunPaths
from opsctl.agent.leases import release
from opsctl.agent.processes import is_alive, owner, user_name
from opsctl.agent.run_queries import ENDED, status_of
from opsctl.agent.run_state import find
from opsctl.agent.session import Call
from opsctl.agent.signals import Ending, members_of
from opsctl.errors import CheckFailed, CommandFailed
from opsctl.records.process import ProcessIdentity
from opsctl.records.run import ExitRecord, RunStatus, StopRequest
from opsctl.records.verdict import Verdict

_POLL_S = 0.05
SLACK_S = 45.0  # beyond the job's grace: killing, draining the terminal, last notifications


def stop(call: Call) -> RunStatus:
    """End a run and return its status once no process of it is left; `grace_s` overrides the run's own."""
    paths = find(call.home, call.request.get("run", ""))
    found = status_of(paths)
    if found.state == "over":
        return found
    asked = StopRequest(call.operator, time.time(), call.request.get("grace_s"))
    recorder = found.run.recorder
    if recorder is not None and is_alive(recorder):
        _ask_recorder(call, paths, recorder, asked, found)
    else:
        _end_ourselves(call.home, paths, asked, found)
    return status_of(paths)


def _grace_s(asked: StopRequest, found: RunStatus) -> float:
    return found.run.spec.stop_grace_s if asked.grace_s is None else asked.grace_s


def _ask_recorder(call: Call, paths: RunPaths, recorder: ProcessIdentity, asked: StopRequest, found: RunStatus) -> None:
    grace_s = _grace_s(asked, found)
    write_record(paths.stop_request, asked)
    with contextlib.suppress(PermissionError):  # another user's, in a shared home: it looks for the request itself
        os.kill(recorder.pid, signal.SIGTERM)
    call.session.progress(f"asked {found.run.run_id} to stop; it may take {grace_s:g} s")
    deadline = time.monotonic() + grace_s + SLACK_S
    while status_of(paths).state not in ENDED:
        if not is_alive(recorder) and not paths.exit.exists():
            _end_ourselves(call.home, paths, asked, found)
            return
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"run {found.run.run_id} has not ended {SLACK_S:g} s after its time was up",
                hint="`opsctl train status` names what is left",
            )
        time.sleep(_POLL_S)


def _refuse_strangers_job(found: RunStatus) -> None:
    """Raise CheckFailed where only another user can end, or even see, what the dead recorder left."""
    job = found.run.job
    if job is None or not is_alive(job) or os.geteuid() in (0, user := owner(job.pid)):
        return
    raise CheckFailed(
        f"the job of run {found.run.run_id} is a process of Unix user {user_name(user)}, who alone may end it",
        hint="let that user, or root on the target, run `opsctl train stop`",
    )


def _end_ourselves(home: Home, paths: RunPaths, asked: StopRequest, found: RunStatus) -> None:
    """Nobody owns the run any more: end what is left and write the record that its recorder could not."""
    run_id = found.run.run_id
    _refuse_strangers_job(found)
    ending = Ending(lambda: members_of(run_id), deadline=time.monotonic() + _grace_s(asked, found))
    while not ending.step(time.monotonic()):
        if time.monotonic() > ending.deadline + SLACK_S:
            left = ", ".join(str(one.pid) for one in ending.left)
            raise CommandFailed(f"processes {left} of run {run_id} do not end", hint="they wait inside the kernel")
        time.sleep(_POLL_S)
    release(home, run_id)
    Path(found.run.socket).unlink(missing_ok=True)
    evidence = (f"ended by {asked.operator} after its recorder had died; how the job ended is not known",)
    verdict = Verdict("stopped", "cause_unknown", since=time.time(), evidence=evidence, step=found.verdict.step)
    write_record(paths.exit, ExitRecord(run_id, (), verdict, found.log_bytes))
