"""Runs get a copy of the project's sources, and keep it whatever happens to the project."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs
from tests.support.until import until

pytestmark = pytest.mark.tmux

SCRIPT = """
import os, pathlib, time
print("from", pathlib.Path(__file__).name, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
import later
print(later.TEXT)
"""


@pytest.fixture
def job(runs: Runs) -> Runs:
    """A job whose sources are the folder `src`."""
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    settings["code"] = {"paths": ["src"]}
    command = ["python3", "{code}/src/main.py"]
    settings["jobs"] = {"main": {"command": command, "env": False, "environment": {"PYTHONPATH": "{code}/src"}}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))
    (runs.project / "src").mkdir()
    (runs.project / "src/main.py").write_text(SCRIPT)
    (runs.project / "src/later.py").write_text("TEXT = 'as it was'")
    return runs


def test_a_run_keeps_the_sources_it_started_with(job: Runs, opsctl: Callable[..., Any]) -> None:
    run = opsctl("train", "start", "main", "--json").ok().json()
    until(lambda: job.log(run) == b"from main.py\n")
    (job.project / "src/later.py").write_text("TEXT = 'changed'")
    (job.folder(run) / "go").touch()
    job.ended(run)
    assert job.log(run) == b"from main.py\nas it was\n"
    code = Path(run["run"]["spec"]["code"])
    assert code.parent == job.home / "code"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in code.rglob("*.py")}
    assert modes == {0o444}
    assert "no clean commit" in opsctl("train", "status").ok().out


def test_equal_sources_are_brought_once(job: Runs, opsctl: Callable[..., Any]) -> None:
    first, second = (opsctl("train", "start", "main", "--name", name, "--json").ok().json() for name in "ab")
    assert first["run"]["spec"]["code"] == second["run"]["spec"]["code"]
    (job.project / "src/later.py").write_text("TEXT = 'changed'")
    third = opsctl("train", "start", "main", "--name", "c", "--json").ok().json()
    assert len(list((job.home / "code").iterdir())) == 2
    assert third["run"]["spec"]["code"] != first["run"]["spec"]["code"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("train", "start", "mian"), 3, "did you mean 'main'?"),
        (("train", "logs", "mian"), 2, "there is no run"),
        (("train", "status"), 2, "no run on this target yet"),
        (("train", "logs", "-n", "1", "--since-byte", "1"), 2, "both say where to begin"),
        (("train", "attach"), 2, "needs a terminal"),
    ],
)
def test_mistakes_are_named(
    job: Runs, opsctl: Callable[..., Any], words: tuple[str, ...], code: int, said: str
) -> None:
    ended = opsctl(*words)
    assert (ended.code, said in ended.err) == (code, True), ended.err


def test_sources_that_are_not_there(job: Runs, opsctl: Callable[..., Any]) -> None:
    (job.project / "src/main.py").unlink()
    (job.project / "src/later.py").unlink()
    (job.project / "src").rmdir()
    ended = opsctl("train", "start")
    assert (ended.code, "code.paths names 'src'" in ended.err) == (3, True), ended.err
