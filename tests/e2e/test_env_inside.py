"""An environment inside a container, over SSH: polluted by hand in four ways, named, brought back, gone back from."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Ended
from tests.support.place import USER, Place
from tests.support.places import combinations
from tests.support.until import until
from tests.support.wheels import build_wheel

Opsctl = Callable[..., Ended]
CHOSEN = [one for one in combinations() if one.id in ("ssh-docker", "ssh-lxc")]
pytestmark = [pytest.mark.tmux, pytest.mark.parametrize("combination", CHOSEN, indirect=True)]

# imports only once it is told to, when its environment is no longer the active one
WAITER = """
import pathlib, sys, time
while not pathlib.Path("go").exists():
    time.sleep(0.05)
import beta
print(beta.VERSION, flush=True)
time.sleep(600)
"""


@pytest.fixture
def home(place: Place) -> Iterator[str]:
    """A home of the unprivileged user inside; gone at the end."""
    with place.folder() as folder:
        place.outside(folder).chmod(0o777)
        yield f"{folder}/home"


@pytest.fixture
def wheels(place: Place, project: Path) -> Iterator[str]:
    """A folder with a wheel of alpha and three of beta, beside an empty index: nothing asks the network.

    It lies at the same path here, where locks are made.
    """
    inside = f"/tmp/opsctl-{secrets.token_hex(4)}"
    for name, version in (("alpha", "1.5"), ("beta", "1.0"), ("beta", "2.0"), ("beta", "3.0")):
        build_wheel(project / "wheels", name, version)
    for folder in (place.outside(inside), Path(inside)):
        shutil.copytree(project / "wheels", folder / "wheels")
        (folder / "index").mkdir()
    yield inside
    for folder in (place.outside(inside), Path(inside)):
        shutil.rmtree(folder)


def _lock(project: Path, beta: str) -> None:
    rows = ["# opsctl: python = 3.11", "# opsctl: direct = alpha beta"]
    for name, version in (("alpha", "1.5"), ("beta", beta)):
        (wheel,) = (project / "wheels").glob(f"{name}-{version}-*.whl")
        rows.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    (project / "env").mkdir(exist_ok=True)
    (project / "env" / "tiny.lock").write_text("\n".join([*rows, ""]))


@pytest.fixture
def configured(place: Place, host: Any, home: str, project: Path, wheels: str) -> None:
    """A project whose job waits."""
    settings = {
        "default_target": "t",
        "targets": {"t": place.as_user(USER).settings(host=host, home=home)},
        "env": {"name": "tiny", "find_links": [f"{wheels}/wheels"], "index_url": f"file://{wheels}/index"},
        "jobs": {"wait": {"command": ["python", "-c", WAITER], "code": False}},
    }
    (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))


def _build(opsctl: Opsctl, project: Path, beta: str) -> dict[str, Any]:
    _lock(project, beta)
    found: dict[str, Any] = opsctl("env", "rebuild", "--json").ok().json()
    return found


def _uv(opsctl: Opsctl, place: Place, home: str, *words: str) -> str:
    """The uv that a rebuild brought, used by hand inside."""
    (uv,) = place.outside(f"{home}/tools").glob("uv-*")
    at_home = ("sh", "-c", 'cd && exec "$@"', "sh")
    return str(opsctl("exec", "--", *at_home, f"{home}/tools/{uv.name}", *words).ok().out.strip())


def _pollute(opsctl: Opsctl, place: Place, home: str, wheels: str, root: str) -> Path:
    """Install another version, edit a file, delete one, add a .pth; and edit uv's cache as well."""
    words = ("--no-index", "--find-links", f"{wheels}/wheels", "beta==3.0")
    _uv(opsctl, place, home, "pip", "install", "--python", f"{root}/bin/python", *words)
    packages = place.outside(f"{root}/lib/python3.11/site-packages")
    (packages / "alpha/inner/work.py").write_text("def work() -> int:\n    return 13\n")
    (packages / "alpha/inner/__init__.py").unlink()
    (packages / "evil.pth").write_text("import sys\n")
    cache = place.outside(_uv(opsctl, place, home, "cache", "dir"))
    cached = list(cache.rglob("alpha/inner/work.py"))
    assert cached, "uv keeps unpacked wheels in its cache"
    for path in cached:
        path.write_text("def work() -> int:\n    return 13\n")
    return packages


@pytest.mark.usefixtures("configured")
def test_pollution_is_named_brought_back_and_gone_back_from(
    opsctl: Opsctl, place: Place, home: str, project: Path, wheels: str
) -> None:
    oldest = _build(opsctl, project, "1.0")["outcome"]["env_id"]
    polluted = _build(opsctl, project, "2.0")["outcome"]
    run = opsctl("train", "start", "wait", "--json").ok().json()
    _pollute(opsctl, place, home, wheels, polluted["path"])

    found = opsctl("env", "verify", "--json")
    named = {
        (one["kind"], one["distribution"], one["path"].rpartition("/")[2]) for one in found.json()["check"]["drifts"]
    }
    assert found.code == 1
    assert named >= {
        ("foreign", "beta==3.0", "beta-3.0.dist-info"),
        ("edited", "alpha==1.5", "work.py"),
        ("missing", "alpha==1.5", "__init__.py"),
        ("intruder", "", "evil.pth"),
    }
    text = opsctl("env", "verify").out
    for words in ("3.0 installed by uv after the build, in place of 2.0", "work.py", "evil.pth", "missing"):
        assert words in text
    refused = opsctl("train", "start", "wait", "--name", "second")
    assert (refused.code, "--allow-drift" in refused.err) == (1, True)

    again = _build(opsctl, project, "2.0")
    assert again["outcome"]["is_new"]
    assert "uv's cache holds alpha changed" in " ".join(again["notes"])
    fresh = place.outside(f"{again['outcome']['path']}/lib/python3.11/site-packages")
    assert (fresh / "alpha/inner/work.py").read_text().endswith("42\n")
    assert not (fresh / "evil.pth").exists()
    assert opsctl("env", "verify", "--full", "--json").ok().json()["is_clean"] is True

    second = opsctl("train", "start", "wait", "--name", "second", "--json").ok().json()
    for one, version in ((run, "3.0"), (second, "2.0")):
        place.outside(f"{one['folder']}/go").touch()
        log = place.outside(f"{one['folder']}/train.log")
        until(lambda log=log, version=version: log.read_text() == f"{version}\n")
    assert f"run {run['run_id']} lives in another build" in second["run"]["spec"]["notes"][0]
    opsctl("train", "stop", "second").ok()

    back = opsctl("env", "activate", oldest, "--json").ok().json()
    assert (back["before"], back["check"]["drifts"]) == (again["outcome"]["env_id"], [])
    version = opsctl("exec", "--env", "active", "--", "python", "-c", "import beta; print(beta.VERSION)").ok().out
    assert version == "1.0\n"
    drifted = opsctl("env", "activate", polluted["env_id"])
    assert (drifted.code, "has drifted, and was not activated" in drifted.err) == (1, True)
    kept = opsctl("env", "prune", "--keep", "1", "--json").ok().json()["kept"]
    assert {one["env_id"]: one["why"] for one in kept} == {
        oldest: "active",
        polluted["env_id"]: f"used by {run['run_id']}",
        again["outcome"]["env_id"]: "among the newest 1",
    }
    opsctl("train", "stop", "wait").ok()
    last = opsctl("env", "prune", "--keep", "1", "--json").ok().json()["removed"]
    assert [one["env_id"] for one in last] == [polluted["env_id"]]


@pytest.mark.usefixtures("configured")
def test_an_environment_made_by_hand_is_saved_and_brought_back(
    opsctl: Opsctl, place: Place, home: str, project: Path, wheels: str
) -> None:
    _build(opsctl, project, "1.0")
    by_hand = f"{home.removesuffix('/home')}/by hand"
    _uv(opsctl, place, home, "venv", "-q", by_hand)
    words = ("--no-index", "--find-links", f"{wheels}/wheels", "alpha", "beta==2.0")
    _uv(opsctl, place, home, "pip", "install", "-q", "--python", f"{by_hand}/bin/python", *words)
    packages = place.outside(f"{by_hand}/lib/python3.11/site-packages")
    (packages / "beta/__init__.py").write_text('VERSION = "2.0, patched"\n')
    found = opsctl("env", "adopt", by_hand, "--name", "hand", "--json").ok().json()
    assert (found["num_pinned"], found["unpinned"]) == (2, [])
    assert "beta 2.0 was edited" in "\n".join(found["changed"])
    shutil.rmtree(place.outside(by_hand))
    opsctl("env", "restore", found["adopted"]["archive_id"]).ok()
    program = "import beta; print(beta.VERSION)"
    assert opsctl("exec", "--", f"{by_hand}/bin/python", "-c", program).ok().out == "2.0, patched\n"
    assert place.outside(by_hand).stat().st_uid == place.outside(home).stat().st_uid != 0
    opsctl("env", "rebuild", "hand").ok()
    assert opsctl("exec", "--env", "active", "--", "python", "-c", program).ok().out == "2.0\n"
