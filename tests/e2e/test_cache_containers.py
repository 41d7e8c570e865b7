"""Warmed in one container, started in another: real torch, real compilers, two builds of the same set."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.docker import CA_BUNDLE, docker_place
from tests.support.place import Place
from tests.support.recipes import tiny_recipe
from tests.support.wheels import torch_wheels

Opsctl = Callable[..., Ended]
ROOT = Path(__file__).resolve().parents[2]
ENVS, WHEELS = "/root/.opsctl/envs", "/srv/wheels"
RECIPE = tiny_recipe(name="tiny", steps=2)
pytestmark = [
    pytest.mark.tmux,
    pytest.mark.docker,
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("main-job"),  # as the other tests that build the whole set
]


def _link_all(source: Path, target: Path) -> None:
    """The same files under other names: a copy that takes no time and no space."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place, Path, Path]]:
    """Two containers, and the folders that are their environments."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for wheel in torch_wheels():
        shutil.copy(wheel, wheels)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with (
        docker_place({first: ENVS, wheels: WHEELS}) as one,
        docker_place({second: ENVS}) as other,
    ):
        yield one, other, first, second
    shutil.rmtree(first)
    shutil.rmtree(second)


@pytest.fixture
def source(project: Path, places: tuple[Place, Place, Path, Path]) -> Path:
    """The trainer with a small recipe, and both targets."""
    for folder in ("trainer", "env"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "configs").mkdir()
    (project / "configs" / "tiny.yaml").write_text(RECIPE)
    recipe = ["{code}/configs/tiny.yaml", "corpus.data_dir={data}"]
    job = {
        "command": ["python", "-m", "trainer", "train", *recipe],
        "prewarm": ["python", "-m", "trainer", "prewarm", *recipe, "--result", "result.json"],
        "environment": {"OMP_NUM_THREADS": "1"},
    }
    settings = {
        "default_target": "one",
        "targets": {"one": places[0].settings(), "other": places[1].settings()},
        "env": {"name": "cpu", "find_links": [WHEELS], "ca_bundle": str(CA_BUNDLE)},
        "jobs": {"drafter": job},
    }
    (project / "opsctl.yaml").write_text(json.dumps(settings))
    return project


def _another_build(first: Path, second: Path) -> None:
    """The second container's environments: the same set, built at another time."""
    (build,) = [path for path in first.iterdir() if path.is_dir() and not path.is_symlink() and path.name[0] != "."]
    name = f"{build.name[:12]}-20200101-000000"
    _link_all(build, second / name)
    (second / "active").symlink_to(name)


def test_a_cache_warmed_in_one_container_is_warm_in_another(
    opsctl: Opsctl, places: tuple[Place, Place, Path, Path], source: Path
) -> None:
    opsctl("env", "rebuild", timeout_s=500).ok()
    cold: dict[str, Any] = opsctl("cache", "prewarm", "--json", timeout_s=500).ok().json()["warmed"]
    assert cold["report"]["fx_misses"] > 0
    assert cold["report"]["compiler_starts"] > 0
    saved = opsctl("cache", "snapshot", "--json", timeout_s=100).ok().json()["snapshot"]["snapshot_id"]
    opsctl("cache", "pull", saved).ok()
    _another_build(*places[2:])
    opsctl("cache", "push", saved, "--trust", "-t", "other").ok()

    run = opsctl("train", "start", "drafter", "-t", "other", "--json", timeout_s=200).ok().json()
    spec = run.get("run", run)["spec"]
    assert f"restored {saved}" in " ".join(spec["notes"])
    assert spec["expect_warm"] is True, spec["notes"]
    opsctl("train", "wait", "-t", "other", timeout_s=300).ok()
    folder = places[1].outside(f"/root/.opsctl/runs/{run.get('run', run)['run_id']}")
    counters = json.loads((folder / "result.json").read_text())["counters"]
    assert [counters[f"{kind}_misses"] for kind in ("fx", "aot")] == [0, 0]
    findings = folder / "findings.jsonl"
    assert "cold_start" not in (findings.read_text() if findings.exists() else "")

    text = (source / "trainer" / "step.py").read_text()
    (source / "trainer" / "step.py").write_text(text + "\n# an edited comment starts nothing cold\n")
    check = opsctl("cache", "verify", "-t", "other", "--json", timeout_s=300).ok().json()["check"]
    assert check["report"]["compiler_starts"] == check["report"]["fx_misses"] == check["report"]["new_binaries"] == 0
