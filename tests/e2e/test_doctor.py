"""`opsctl doctor` on real targets: well ones, and ones that lack something."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Ended
from tests.support.place import USER, Place, ran
from tests.support.runs import NVIDIA_SMI
from tests.support.sshd import free_port
from tests.support.torch_env import lend_torch

DEEP = ("fx tracing", "hidden compile", "compile caches", "kill switches")
Opsctl = Callable[..., Ended]
LOCK = f"# opsctl: python = 3.11\nalpha==1.0 --hash=sha256:{'0' * 64}\n"
CUDA_LOCK = f"{LOCK}nvidia-cuda-runtime==13.0.96 --hash=sha256:{'0' * 64}\n"


@pytest.fixture
def configure(project: Path) -> Callable[..., None]:
    """Write opsctl.yaml for one target, and the lock of its set."""

    def write(target: dict[str, Any], *, lock: str = LOCK, **sections: Any) -> None:
        (project / "env").mkdir(exist_ok=True)
        (project / "env" / "tiny.lock").write_text(lock)
        settings = {"default_target": "t", "targets": {"t": target}, "env": {"name": "tiny"}, **sections}
        (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))

    return write


def _answers(ended: Ended) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in ended.json()["checks"]}


def _says_no(ended: Ended) -> list[str]:
    return [name for name, check in _answers(ended).items() if check["ok"] is False]


@pytest.mark.tmux
def test_a_well_target_is_well(
    combination: tuple[str, str], place: Place, host: Any, opsctl: Opsctl, configure: Callable[..., None]
) -> None:
    with place.folder() as folder:
        configure(place.settings(host=host, home=f"{folder}/home"))
        found = opsctl("doctor", "--json")
        assert _says_no(found) == []
        assert found.code == 0
        answers = _answers(found)
    assert list(answers)[:3] == ["reach", "container", "host key"]
    assert ("sshd" in answers) == (combination[0] == "ssh")
    assert place.kind in answers["container"]["found"]
    assert "3.11" in answers["python"]["found"]


def test_a_set_for_gpus_on_a_target_without_any_is_told(
    opsctl: Opsctl, configure: Callable[..., None], tmp_path: Path
) -> None:
    configure({"home": str(tmp_path / "home")}, lock=CUDA_LOCK)
    found = opsctl("doctor", "--json", PATH="/usr/bin:/bin")
    assert found.code == 1
    assert set(_says_no(found)) >= {"gpus", "gpu devices", "driver"}
    assert "CUDA 13.0" in _answers(found)["driver"]["found"]


def test_gpus_that_others_use_are_told(opsctl: Opsctl, configure: Callable[..., None], tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").symlink_to(NVIDIA_SMI)
    (tmp_path / "series.csv").write_text(
        "index, uuid, name, memory.used, memory.total\n0, GPU-a, H200, 4, 143771\n1, GPU-b, H200, 9000, 143771\n"
    )
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "NVIDIA_SMI_PLAN": str(tmp_path)}
    configure({"home": str(tmp_path / "home")}, jobs={"j": {"command": ["x"], "gpus": [0, 1, 2]}})
    answers = _answers(opsctl("doctor", "--json", **variables))
    assert "jobs lease GPU 2" in answers["gpus"]["found"]
    assert "GPU 1 holds 9000 MiB of others" in answers["tenants"]["found"]
    (tmp_path / "mode").write_text("fail Unable to determine the device handle: GPU is lost")
    assert "GPU is lost" in _answers(opsctl("doctor", "--json", **variables))["gpus"]["found"]


@pytest.fixture
def hiding(lxc_place: Place) -> Iterator[Place]:
    """A container whose /proc shows nobody the processes of other users."""
    name = lxc_place.container["lxc"]
    remount = ("lxc-attach", "-n", name, "--", "mount", "-o")
    ran(*remount, "remount,hidepid=2", "/proc")
    yield lxc_place
    ran(*remount, "remount,hidepid=0", "/proc")


@pytest.mark.lxc
@pytest.mark.tmux
def test_hidden_processes_are_told_and_are_not_taken_for_dead(opsctl: Opsctl, project: Path, hiding: Place) -> None:
    home = f"/srv/{secrets.token_hex(4)}"
    ran("lxc-attach", "-n", hiding.container["lxc"], "--", "install", "-d", "-g", USER, "-m", "2770", home)
    targets = {"root": hiding.settings(home=home), "user": hiding.as_user(USER).settings(home=home)}
    (project / "opsctl.yaml").write_text(yaml.safe_dump({"default_target": "user", "targets": targets}))
    opsctl("train", "start", "--name", "nap", "-t", "root", "--", "sleep", "600").ok()
    try:
        assert opsctl("train", "status", "nap", "--json").ok().json()["state"] == "running"
        found = opsctl("doctor", "--json")
        assert "processes" in _answers(found), found.out
        assert "hidepid" in _answers(found)["processes"]["found"]
        assert _answers(opsctl("doctor", "-t", "root", "--json"))["processes"]["ok"] is True
    finally:
        opsctl("train", "stop", "nap", "-t", "root").ok()


@pytest.mark.docker
def test_a_container_that_is_not_there_is_an_answer(opsctl: Opsctl, configure: Callable[..., None]) -> None:
    configure({"container": {"docker": "opsctl-of-nowhere"}})
    found = opsctl("doctor", "--json")
    assert found.code == 1
    assert _says_no(found) == ["container"]
    assert _answers(found)["reach"]["ok"] is True
    assert "`opsctl container up -t t`" in opsctl("doctor").out


@pytest.mark.ssh
def test_a_host_that_does_not_answer_is_an_answer(
    opsctl: Opsctl, configure: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    configure({"host": {**request.getfixturevalue("sshd").settings, "port": free_port()}})
    found = opsctl("doctor", "--json")
    assert found.code == 1
    assert _says_no(found) == ["reach"]
    assert _answers(found)["host key"]["ok"] is None


def test_a_target_without_python_is_an_answer(opsctl: Opsctl, configure: Callable[..., None]) -> None:
    configure({"python": "python-of-nowhere"})
    found = opsctl("doctor", "--json")
    assert found.code == 1
    assert _says_no(found) == ["agent"]
    assert "python-of-nowhere" in _answers(found)["agent"]["found"]


def test_a_set_without_a_lock_is_an_answer(
    opsctl: Opsctl, project: Path, configure: Callable[..., None], tmp_path: Path
) -> None:
    configure({"home": str(tmp_path / "home")})
    (project / "env" / "tiny.lock").unlink()
    found = json.loads(opsctl("doctor", "--json").out)
    assert [check["name"] for check in found["checks"] if check["ok"] is False] == ["set"]
    assert found["ok"] is False


@pytest.mark.tmux
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
def test_deep_asks_the_environments_own_torch(
    opsctl: Opsctl, configure: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = {"home": str(tmp_path / "target"), "python": sys.executable}
    configure(target, jobs={"drafter": {"command": ["true"]}})
    none = _answers(opsctl("doctor", "--deep", "--json"))
    assert (none["compile"]["ok"], "no environment is active" in none["compile"]["found"]) == (False, True)
    lend_torch(tmp_path / "target")
    well = _answers(opsctl("doctor", "--deep", "--json", timeout_s=280))
    assert {name: well[name]["ok"] for name in DEEP} == dict.fromkeys(DEEP, True)
    assert "transformers/integrations/flex_attention.py:" in well["hidden compile"]["found"]
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    ended = opsctl("doctor", "--deep", "--json", timeout_s=280)
    assert (ended.code, set(_says_no(ended)) & set(DEEP)) == (1, {"compile caches", "kill switches"})
    assert "TORCH_COMPILE_DISABLE=1 on the target" in _answers(ended)["kill switches"]["found"]
