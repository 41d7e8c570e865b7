"""Starts that meet each other, or a place that makes them hard."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND
from tests.support.runs import Runs, is_gone
from tests.support.until import until

pytestmark = pytest.mark.tmux


def test_five_starts_at_once_give_one_run(runs: Runs, opsctl: Callable[..., Any]) -> None:
    argv = [COMMAND, "train", "start", "--name", "one", "--json", "--", "sleep", "600"]
    starts = [
        subprocess.Popen(argv, cwd=runs.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    ended = [(start.communicate(timeout=200), start.returncode) for start in starts]
    assert sorted(code for _, code in ended) == [0, 8, 8, 8, 8]
    refusals = [json.loads(err)["error"] for (_, err), code in ended if code]
    assert {refusal["kind"] for refusal in refusals} == {"Busy"}
    assert all("since" in refusal["message"] for refusal in refusals)
    listed = opsctl("train", "list", "--json").ok().json()["items"]
    assert [run["state"] for run in listed] == ["running"]


def test_second_start_names_the_first(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sleep", "600", name="one")
    refused = opsctl("train", "start", "--name", "one", "--", "true")
    assert refused.code == 8
    assert run["run_id"] in refused.err
    assert run["run"]["spec"]["operator"] in refused.err
    opsctl("train", "start", "--name", "two", "--", "true").ok()
    opsctl("train", "stop", "one").ok()
    opsctl("train", "start", "--name", "one", "--", "true").ok()


def test_a_name_must_be_a_name(runs: Runs, opsctl: Callable[..., Any]) -> None:
    for name in ("a b", "../x", "", ".x", "a;b"):
        refused = opsctl("train", "start", "--name", name, "--", "true")
        assert refused.code == 2 or name == "", refused
    assert not list(runs.home.glob("runs/*x*"))


def test_home_longer_than_a_socket_name_may_be(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    settings = {"default_target": "here", "targets": {"here": {"home": str(home)}}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))
    runs.home = home
    run = runs.start("sh", "-c", "echo up; sleep 600")
    socket = Path(run["run"]["socket"])
    assert socket.stat().st_uid == socket.parent.stat().st_uid
    assert socket.parent.stat().st_mode & 0o077 == 0
    until(lambda: runs.log(run) == b"up\n")
    opsctl("train", "stop").ok()
    until(lambda: not socket.exists())


def test_no_tmux_on_the_target(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "env", "sha256sum", "head", "mv", "rm", "mkdir", "true"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    refused = opsctl("train", "start", "--", "true", PATH=str(tools))
    assert refused.code == 6
    assert "tmux" in refused.err
    assert not list(runs.home.glob("runs/*"))


def test_a_run_started_by_a_run_is_no_part_of_it(runs: Runs, opsctl: Callable[..., Any]) -> None:
    inner = f"{COMMAND} train start --name inner -- sleep 600"
    outer = runs.start("sh", "-c", f"cd {runs.project} && {inner}", name="outer")
    assert runs.ended(outer)["attempts"][0]["exit_code"] == 0, runs.log(outer)
    status = opsctl("train", "status", "inner", "--json").ok().json()
    assert status["state"] == "running"
    assert not is_gone(status["run"]["job"]["pid"])
