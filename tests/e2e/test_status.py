"""`opsctl status` on real targets: empty ones, ones with runs, and ones that cannot be reached."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs
from tests.support.watching import job


def _configure(project: Path, home: Path, **more: Any) -> None:
    targets = {"here": {"home": str(home)}, **more.pop("targets", {})}
    (project / "opsctl.yaml").write_text(json.dumps({"default_target": "here", "targets": targets, **more}))


def test_an_empty_target_is_told_what_to_do_next(opsctl: Callable[..., Any], project: Path, tmp_path: Path) -> None:
    _configure(project, tmp_path / "target", jobs={"drafter": {"command": ["python", "x.py"]}})
    page = opsctl("status").ok().out
    for words in (
        "here (this machine)",
        "none is active",
        "none yet",
        "write env/cpu.in",
        "opsctl train start -- COMMAND",
    ):
        assert words in page
    (project / "env").mkdir()
    (project / "env" / "cpu.lock").touch()
    page = opsctl("status").ok().out
    assert "opsctl env rebuild" in page
    assert "opsctl train start drafter" in page
    (target,) = opsctl("status", "--json").ok().json()["targets"]
    assert (target["is_reached"], target["active_env"], target["runs"]) == (True, None, [])
    assert len(target["next"]) == 2


def test_no_configuration_is_told_the_way_to_one(opsctl: Callable[..., Any]) -> None:
    ended = opsctl("status")
    assert ended.code == 3
    assert "opsctl init --local" in ended.err


def test_a_target_that_cannot_be_reached_hides_no_other(
    opsctl: Callable[..., Any], project: Path, tmp_path: Path
) -> None:
    _configure(project, tmp_path / "target", targets={"rack": {"python": "python-of-nowhere"}})
    page = opsctl("status").ok().out
    assert "python-of-nowhere" in page
    assert "none is active" in page
    ended = opsctl("status", "-t", "rack", "--json")
    assert ended.code == 4
    (target,) = ended.json()["targets"]
    assert (target["name"], target["is_reached"]) == ("rack", False)
    assert target["hint"]


@pytest.mark.tmux
def test_live_runs_come_first_with_verdict_and_step(runs: Runs, opsctl: Callable[..., Any]) -> None:
    live = runs.start(*job("steps", "--steps", "100000"), name="alive")
    dead = runs.start(*job("steps", "--steps", "100000"), name="dead")
    os.kill(runs.job_pid(dead), signal.SIGKILL)
    runs.ended(dead)
    (target,) = opsctl("status", "--json").ok().json()["targets"]
    assert [one["run_id"] for one in target["runs"]] == [live["run_id"], dead["run_id"]]
    assert [one["state"] for one in target["runs"]] == ["running", "over"]
    assert target["runs"][1]["verdict"]["verdict"] == "crashed"
    page = opsctl("status").ok().out
    assert page.index(live["run_id"]) < page.index(dead["run_id"])
    assert f"opsctl watch {live['run_id']}" in page
    assert "crashed sigkill unknown" in page
    assert "2, 1 live" in page
