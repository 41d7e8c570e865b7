"""The demo, whole, over SSH into a Docker and an LXC container: from nothing to a trained drafter and a snapshot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ended
from tests.support.docker import CA_BUNDLE, docker_place
from tests.support.left import agents
from tests.support.lxc import lxc_place
from tests.support.place import Place
from tests.support.places import MARKS
from tests.support.recipes import tiny_recipe
from tests.support.runs import processes_with
from tests.support.sshd import Sshd
from tests.support.until import until
from tests.support.wheels import torch_wheels

Opsctl = Callable[..., Ended]
ROOT = Path(__file__).resolve().parents[2]
PLACES = {"docker": docker_place, "lxc": lxc_place}
WHEELS = "/srv/wheels"
RECOMPILES = ROOT / "tests" / "support" / "jobs" / "recompiles.py"
RECIPE = tiny_recipe(name="demo", steps=6)
pytestmark = [
    pytest.mark.tmux,
    pytest.mark.ssh,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("main-job"),  # they share uv's cache, so that wheels are fetched once
]


@pytest.fixture(scope="module")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """uv's cache for both containers, as on a host that gives them one; nothing else is shared."""
    folder = tmp_path_factory.mktemp("uv")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=[pytest.param(kind, marks=MARKS[kind]) for kind in PLACES])
def own_place(request: pytest.FixtureRequest, tmp_path: Path, uv_cache: Path) -> Iterator[Place]:
    """A container that has never seen opsctl, with the wheels that this machine has of torch."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for wheel in torch_wheels():
        os.link(wheel, wheels / wheel.name) if wheel.stat().st_dev == wheels.stat().st_dev else shutil.copy(
            wheel, wheels
        )
    with PLACES[request.param]({uv_cache: "/root/.cache/uv", wheels: WHEELS}) as place:
        yield place


@pytest.fixture
def source(project: Path) -> Path:
    """The project as it is checked out, with a small recipe."""
    for folder in ("trainer", "configs", "env", "examples"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "configs" / "demo.yaml").write_text(RECIPE)
    return project


def _name_sources(path: Path) -> None:
    """What a user writes whose machine has no way to the indexes but a proxy and a folder of wheels."""
    text = path.read_text()
    for key, value in (("find_links", f"[{WHEELS}]"), ("ca_bundle", str(CA_BUNDLE))):
        text, count = re.subn(rf"(?m)^(env:\n(?:  .*\n)*?  {key}:) \S+", rf"\1 {value}", text)
        assert count == 1, f"{key} stands in the section env"
    path.write_text(text)


def _add_job_that_falls_back(project: Path) -> None:
    """A job whose batches all have another shape, in the environment of the demo."""
    shutil.copy(RECOMPILES, project / "trainer" / "recompiles.py")
    path = project / "opsctl.yaml"
    job = 'falls: {command: [python, -u, "{code}/trainer/recompiles.py"], expect_compiled: true}'
    path.write_text(path.read_text().replace("\njobs:\n", f"\njobs:\n  {job}\n", 1))


def _demo(project: Path, *words: str) -> str:
    """What the demo prints, if it succeeds."""
    argv = (sys.executable, str(project / "examples" / "demo.py"), *words)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=800, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_demo_runs_whole_and_a_fallback_is_told(opsctl: Opsctl, own_place: Place, sshd: Sshd, source: Path) -> None:
    ((kind, name),) = own_place.container.items()
    words = ("box", "--ssh-config", str(sshd.ssh_config), f"--{kind}", name)
    opsctl("init", *words).ok()
    _name_sources(source / "opsctl.yaml")
    opsctl("doctor").ok()
    said = _demo(source, *words)

    run = opsctl("train", "status", "--json").ok().json()
    assert (run["state"], run["verdict"]["verdict"]) == ("over", "finished")
    folder = own_place.outside(run["folder"])
    result = json.loads((folder / "result.json").read_text())
    assert result["steps"] == 6
    assert [result["counters"][f"{cache}_misses"] for cache in ("fx", "aot")] == [0, 0], "the prewarm was of use"
    assert sum(result["counters"][f"{cache}_hits"] for cache in ("fx", "aot")) > 0
    assert [one["exit_code"] for one in json.loads((folder / "exit.json").read_text())["attempts"]] == [0]
    assert opsctl("env", "verify", "--json").ok().json()["is_clean"] is True
    (snapshot,) = opsctl("cache", "list", "--json").ok().json()["snapshots"]
    assert own_place.outside(snapshot["path"]).stat().st_size > 0
    assert run["folder"] in said.replace("\n", "").replace(" ", "")
    _add_job_that_falls_back(source)
    falls = opsctl("train", "start", "falls", "--json").ok().json()["run"]
    seen = opsctl("watch", "falls", "--fail-fast", "--json", timeout_s=200)
    verdicts = [row for row in map(json.loads, seen.out.splitlines()) if row["event"] == "verdict"]
    assert (seen.code, verdicts[-1]["verdict"]) == (1, "eager_fallback")
    opsctl("train", "stop", "falls", "--grace", "1").ok()
    for run_id in (run["run_id"], falls["run_id"]):
        assert processes_with(f"OPSCTL_RUN_ID={run_id}") == []
    until(lambda: not agents("/root/.opsctl", inside=own_place))
