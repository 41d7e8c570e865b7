"""Restarts for causes that one can cure, and people who are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs
from tests.support.until import until

pytestmark = pytest.mark.tmux

# dies with this signal or status until the file `tries` holds enough rows; each try comes a step further
JOB = """
import os, sys
tries = os.path.join(os.environ["OPSCTL_RUN_DIR"], "tries")
with open(tries, "a") as file: file.write("x")
number = os.path.getsize(tries)
step = number * int(sys.argv[1])
print(f"step {step}/100 loss=0.5", flush=True)
if number < 3: os.kill(os.getpid(), 9)
print("finished")
"""


def _configure(runs: Runs, command: list[str], notify: dict[str, Any] | None = None, **job: Any) -> None:
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    settings["jobs"] = {"job": {"command": command, "env": False, "code": False, **job}}
    settings["notify"] = notify or {}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))


def test_killed_job_starts_again_and_finishes(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, str(tmp_path / "job.py"), "10"]
    _configure(runs, command, restart={"max": 5, "backoff_s": 0.1})
    run = opsctl("train", "start", "job", "--json").ok().json()
    record = runs.ended(run)
    assert [(one["signal"], one["exit_code"]) for one in record["attempts"]] == [(9, None), (9, None), (None, 0)]
    assert [one["restart"] for one in record["attempts"]] == [True, True, False]
    assert [one["last_step"] for one in record["attempts"]] == [10, 20, 30]
    assert record["verdict"]["verdict"] == "finished"
    assert opsctl("train", "wait").code == 0


def test_no_restart_without_a_cure(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import no_such_module"]
    _configure(runs, command, restart={"max": 5, "backoff_s": 0.1})
    run = opsctl("train", "start", "job", "--json").ok().json()
    (attempt,) = runs.ended(run)["attempts"]
    assert attempt["cause"] == "missing_module"


def test_no_restart_after_a_stop(runs: Runs, opsctl: Callable[..., Any]) -> None:
    _configure(runs, ["sleep", "600"], restart={"max": 5, "backoff_s": 0.1})
    run = opsctl("train", "start", "job", "--json").ok().json()
    opsctl("train", "stop").ok()
    assert len(runs.read(run, "exit.json")["attempts"]) == 1


def test_stop_while_a_restart_waits(runs: Runs, opsctl: Callable[..., Any]) -> None:
    _configure(runs, ["sh", "-c", "kill -9 $$"], restart={"max": 5, "backoff_s": 600})
    run = opsctl("train", "start", "job", "--json").ok().json()
    until((runs.folder(run) / "verdict.json").exists)
    until(lambda: "starts again" in runs.read(run, "verdict.json")["advice"])
    assert opsctl("train", "status", "--json").ok().json()["state"] == "running"
    opsctl("train", "stop").ok()
    assert len(runs.read(run, "exit.json")["attempts"]) == 1


def test_command_is_told_of_every_verdict(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    told = tmp_path / "told"
    _configure(
        runs,
        ["sh", "-c", "echo step 1/9; sleep 0.3; exit 7"],
        {"command": ["sh", "-c", f"cat >>{told}; echo >>{told}"]},
    )
    run = opsctl("train", "start", "job", "--json").ok().json()
    runs.ended(run)
    until(lambda: told.exists() and "crashed" in told.read_text().rpartition("\n")[0])
    rows = [json.loads(row) for row in told.read_text().rpartition("\n")[0].splitlines()]
    assert rows[0]["run_id"] == run["run_id"]
    assert {"name", "before", "verdict", "operator", "time"} <= rows[0].keys()


def test_a_command_that_hangs_does_not_hold_the_run(runs: Runs, opsctl: Callable[..., Any]) -> None:
    _configure(runs, ["false"], {"command": ["sleep", "600"]})
    run = opsctl("train", "start", "job", "--json").ok().json()
    (attempt,) = runs.ended(run)["attempts"]
    assert attempt["exit_code"] == 1
    written = (runs.folder(run) / "exit.json").stat().st_mtime
    assert written - attempt["ended"] < 8  # a message has 10 s
