"""What the recorder saves of a job that hangs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs
from tests.support.until import until
from tests.support.watching import job

pytestmark = pytest.mark.tmux
STEPPING = job("steps", "--steps", "100000", "--step-s", "0.05")


def _finding(runs: Runs, run: dict[str, Any]) -> dict[str, Any]:
    """What the run's findings say about stacks."""

    def found() -> list[dict[str, Any]]:
        return [row for row in runs.rows(run, "findings.jsonl") if "stacks" in row["summary"]]

    return until(found)[0]


def _stop(runs: Runs, run: dict[str, Any]) -> None:
    until(lambda: b"step 5/" in runs.log(run))
    os.kill(runs.job_pid(run), signal.SIGSTOP)


@pytest.mark.pyspy
def test_the_stacks_of_a_hung_job_are_saved_and_named(runs: Runs) -> None:
    run = runs.start(*STEPPING)
    _stop(runs, run)
    finding = _finding(runs, run)
    assert finding["summary"].startswith("stacks of 1 of 1 processes are in ")
    text = Path(finding["summary"].rpartition(" ")[2]).read_text()
    assert "one_step (steps.py:" in text
    assert f"pid {runs.job_pid(run)}: {sys.executable}" in text
    assert "state T" in text
    assert any("one_step" in row for row in finding["evidence"])


def test_an_absent_py_spy_is_said_and_the_rest_is_saved(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert shutil.which("py-spy") is None
    run = runs.start(*STEPPING)
    _stop(runs, run)
    finding = _finding(runs, run)
    assert "stacks of 0 of 1 processes" in finding["summary"]
    assert "py-spy is not on the target" in finding["advice"]
    assert "waits in" in (runs.folder(run) / "stacks-1.txt").read_text()
