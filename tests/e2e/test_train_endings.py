"""Whatever way a job ends, its exit record says so, and no process of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs, is_gone
from tests.support.until import until

pytestmark = pytest.mark.tmux
Fate = Callable[[Runs, dict[str, Any]], None]


def _nothing(runs: Runs, run: dict[str, Any]) -> None:
    """The job ends by itself."""


def _signal(number: signal.Signals) -> Fate:
    return lambda runs, run: os.kill(runs.job_pid(run), number)


def _kill_tmux(runs: Runs, run: dict[str, Any]) -> None:
    answer = subprocess.run(
        ["tmux", "-S", run["run"]["socket"], "display-message", "-p", "#{pid}"], capture_output=True, check=True
    )
    os.kill(int(answer.stdout), signal.SIGKILL)
    (runs.folder(run) / "go").touch()


ENDINGS: dict[str, tuple[tuple[str, ...], Fate, int | None, int | None, str]] = {
    "exit 0": (("true",), _nothing, 0, None, "finished"),
    "exit 1": (("sh", "-c", "exit 1"), _nothing, 1, None, "crashed"),
    "exit 7": (("sh", "-c", "exit 7"), _nothing, 7, None, "crashed"),
    "exit 75": (("sh", "-c", "exit 75"), _nothing, 75, None, "stopped"),
    "import error": ((sys.executable, "-c", "import no_such_module"), _nothing, 1, None, "crashed"),
    "SIGTERM": (("sleep", "600"), _signal(signal.SIGTERM), None, 15, "stopped"),
    "SIGKILL": (("sleep", "600"), _signal(signal.SIGKILL), None, 9, "crashed"),
    "SIGSEGV": (("sleep", "600"), _signal(signal.SIGSEGV), None, 11, "crashed"),
    "tmux killed": (
        ("sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo on; exit 3"),
        _kill_tmux,
        3,
        None,
        "crashed",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_record(runs: Runs, ending: str) -> None:
    argv, fate, code, number, verdict = ENDINGS[ending]
    run = runs.start(*argv)
    fate(runs, run)
    record = runs.ended(run)
    (attempt,) = record["attempts"]
    assert (attempt["exit_code"], attempt["signal"]) == (code, number)
    assert record["verdict"]["verdict"] == verdict
    assert record["log_bytes"] == len(runs.log(run))
    until(lambda: not runs.machinery(run))
    assert runs.members(run) == []


def test_program_that_does_not_exist(runs: Runs, opsctl: Callable[..., Any]) -> None:
    ended = opsctl("train", "start", "--name", "job", "--json", "--", "/no/such/program")
    assert ended.code == 6
    assert "/no/such/program" in json.loads(ended.err)["error"]["message"]
    status = opsctl("train", "status", "job", "--json").ok().json()
    assert status["state"] == "over"
    assert status["exit"]["attempts"][0]["exit_code"] == 127
    assert status["verdict"]["verdict"] == "crashed"


def test_program_that_is_not_executable(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    ended = opsctl("train", "start", "--", str(script))
    assert ended.code == 5
    assert "not executable" in ended.err


@pytest.mark.parametrize(
    ("argv", "code"), [(("true",), 0), (("false",), 1), (("sh", "-c", "exit 75"), 75)], ids=["0", "1", "75"]
)
def test_wait_passes_the_verdict_on(runs: Runs, opsctl: Callable[..., Any], argv: tuple[str, ...], code: int) -> None:
    runs.start(*argv)
    assert opsctl("train", "wait").code == code


@pytest.mark.parametrize("limit", ["0", "0.3"])
def test_wait_gives_up_and_the_run_goes_on(runs: Runs, opsctl: Callable[..., Any], limit: str) -> None:
    run = runs.start("sleep", "600")
    given_up = opsctl("train", "wait", "--timeout", limit)
    assert given_up.code == 7
    assert f"after {limit} s and goes on" in given_up.err
    assert not is_gone(runs.job_pid(run))


def test_stop_waits_for_the_checkpoint(runs: Runs, opsctl: Callable[..., Any]) -> None:
    job = "trap 'sleep 0.5; echo saved; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    run = runs.start("sh", "-c", job)
    until(lambda: b"ready" in runs.log(run))
    opsctl("train", "stop").ok()
    (attempt,) = runs.read(run, "exit.json")["attempts"]
    assert (attempt["exit_code"], attempt["stop_requested"]) == (75, True)
    assert b"saved" in runs.log(run)
    assert opsctl("train", "wait").code == 75


def test_stop_kills_what_does_not_listen(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: b"ready" in runs.log(run))
    opsctl("train", "stop", "--grace", "0.3").ok()
    (attempt,) = runs.read(run, "exit.json")["attempts"]
    assert attempt["signal"] == signal.SIGKILL
    assert runs.members(run) == []


def test_a_shell_that_dies_early_does_not_cost_the_checkpoint(runs: Runs, opsctl: Callable[..., Any]) -> None:
    """What the shell was waiting for has the whole time that was granted, not that of a mere leftover."""
    saver = "trap 'sleep 1.5; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done"
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    command = ["sh", "-c", 'sh -c "$1"; true', "sh", saver]
    settings["jobs"] = {"job": {"command": command, "env": False, "code": False, "stop_grace_s": 0.5}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))
    run = opsctl("train", "start", "--json").ok().json()
    until(lambda: b"ready" in runs.log(run))
    opsctl("train", "stop", "--grace", "20").ok()
    assert b"saved" in runs.log(run)


def test_stop_wakes_a_stopped_job(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sh", "-c", "trap 'exit 75' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: b"ready" in runs.log(run))
    os.kill(runs.job_pid(run), signal.SIGSTOP)
    opsctl("train", "stop", "--grace", "20").ok()
    assert runs.read(run, "exit.json")["attempts"][0]["exit_code"] == 75


def test_leftovers_end_with_the_run(runs: Runs) -> None:
    """What the job leaves behind ends, also where it has a session of its own or dropped the run's id."""
    job = (
        "setsid sleep 300 & echo $!; "
        "env -i setsid sleep 301 & echo $!; "
        "(setsid sh -c 'trap \"\" TERM; echo $$ >&3; touch up; sleep 302 & sleep 303' >/dev/null 2>&1 &) 3>&1; "
        "until [ -e up ]; do sleep 0.05; done; exit 0"
    )
    run = runs.start("sh", "-c", job)
    record = runs.ended(run)
    assert record["attempts"][0]["exit_code"] == 0
    assert runs.members(run) == []
    left = [int(pid) for pid in runs.log(run).split()]
    assert len(left) == 3
    assert all(is_gone(pid) for pid in left)
    until(lambda: not runs.machinery(run))


@pytest.mark.torch
def test_torchrun_ends_as_a_whole(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    """torchrun gives every rank a session of its own."""
    script = tmp_path / "rank.py"
    script.write_text("import os, time\nos.write(1, b'rank up\\n')\ntime.sleep(600)\n")
    argv = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    run = runs.start(*argv)
    until(lambda: runs.log(run).count(b"rank up\n") >= 2, 200)
    members = runs.members(run)
    assert len(members) >= 3
    opsctl("train", "stop", "--grace", "20").ok()
    assert runs.members(run) == []
    assert all(is_gone(pid) for pid in members)
    assert runs.read(run, "exit.json")["verdict"]["verdict"] == "stopped"
