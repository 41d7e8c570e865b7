"""Several operators on one target: a live holder is named and left alone, a dead one is taken over and named too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.runs import Runs, Smi, is_gone
from tests.support.until import until

Opsctl = Callable[..., Ended]
pytestmark = pytest.mark.tmux

HOLDER = """
import sys, time
from pathlib import Path
from opsctl.agent.locks import held
with held(Path(sys.argv[1]), operator="ana@desk", why="start of run one"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another operator's process that holds a lock."""
    argv = (sys.executable, "-c", HOLDER, str(lock))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def _refusal(ended: Ended) -> str:
    assert ended.code == 8
    error = json.loads(ended.err)["error"]
    assert error["kind"] == "Busy"
    return str(error["message"])


def test_a_lock_is_refused_while_its_owner_lives_and_taken_over_when_it_died(runs: Runs, opsctl: Opsctl) -> None:
    start = ("train", "start", "--name", "one", "--json", "--", "true")
    with _held(runs.home / "locks" / "run-one.lock") as owner:
        said = _refusal(opsctl(*start))
        assert "ana@desk" in said
        assert f"process {owner.pid}" in said
        assert "since 2" in said
        assert "for: start of run one" in said
        owner.kill()
        owner.wait()
        taken = opsctl(*start).ok()
    note = f"took over lock run-one.lock, left by a process that died: ana@desk (process {owner.pid}) since 2"
    assert note in taken.err
    assert note in taken.json()["run"]["spec"]["notes"][0]
    runs.ended(taken.json())
    assert "took over" not in opsctl(*start).ok().err, "one that was given back is nobody's"


def _kill_whole(runs: Runs, run: dict[str, Any]) -> None:
    """As a machine does that stops: nobody writes an exit record, nobody gives anything back."""
    for pid in (*runs.machinery(run), *runs.members(run)):
        with contextlib.suppress(ProcessLookupError):  # went with another
            os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(runs.job_pid(run)) and not runs.machinery(run))


@pytest.mark.parametrize("boot", ["this boot", "an earlier boot"])
def test_a_gpu_is_refused_while_its_run_lives_and_taken_over_when_it_died(
    runs: Runs, smi: Smi, opsctl: Opsctl, boot: str
) -> None:
    run = runs.start("sleep", "600", name="one", options=("--gpus", "1"), LOGNAME="ana")
    start = ("train", "start", "--name", "two", "--gpus", "1", "--json", "--", "true")
    said = _refusal(opsctl(*start))
    assert f"GPU 1 is held by run {run['run_id']} of ana@" in said
    assert " since 2" in said
    _kill_whole(runs, run)
    (lease,) = (runs.home / "locks").glob("gpu-*.lease")
    if boot == "an earlier boot":  # whose pids may be others' by now: here that of this very test
        owner = json.loads(lease.read_text())
        owner["process"] |= {"boot_id": "00000000-0000-0000-0000-000000000000", "pid": os.getpid()}
        lease.write_text(json.dumps(owner))
    taken = opsctl(*start).ok()
    assert "took over GPU 1, left by a run that died: ana@" in taken.err
    assert f"for: run {run['run_id']}" in taken.err
    assert opsctl("train", "status", "one", "--json").ok().json()["state"] == "lost"
