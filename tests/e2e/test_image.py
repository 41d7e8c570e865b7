"""The project's own Dockerfile, built for real on the local Debian base: a small pinned set, and the trainer's own."""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomllib
import yaml

from tests.conftest import Ended
from tests.support.docker import CA_BUNDLE, IMAGE
from tests.support.place import ran
from tests.support.wheels import build_wheel, torch_wheels

Opsctl = Callable[..., Ended]
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("image")]  # builds at once lose steps that they share


@pytest.fixture
def name() -> Iterator[str]:
    """The name of an image and its container; both and its volumes are gone at the end, the build's steps stay."""
    name = f"opsctl-tests-{secrets.token_hex(4)}"
    yield name
    volumes = ("docker", "volume", "rm", "-f", f"{name}-home", f"{name}-cache")
    for argv in (("docker", "rm", "-f", name), volumes, ("docker", "image", "rm", "-f", name)):
        subprocess.run(argv, capture_output=True, timeout=300)


@pytest.fixture
def source(project: Path) -> Path:
    """The project's folder with all that the image is made of, and the machine's certificates."""
    for path in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / path, project / path)
    for folder in ("trainer", "configs", "env"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CA_BUNDLE, project / "env" / "ca.crt")
    return project


def _configure(project: Path, name: str, env: str, **build_args: str) -> None:
    docker = {"image": name, "base": IMAGE, "gpus": "none", "shm_size": "256m", "ulimits": {}, "restart": "no"}
    docker["build_args"] = {"CA_BUNDLE": "env/ca.crt", **build_args}
    targets = {"d": {"container": {"docker": name}}}
    settings = {"default_target": "d", "targets": targets, "docker": docker, "env": {"name": env}}
    (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))


def _pin(wheel: Path, version: str) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"# opsctl: python = 3.11\n{wheel.name.partition('-')[0]}=={version} --hash=sha256:{digest}\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_holds_the_set_and_the_code_and_is_nobodys_root(opsctl: Opsctl, source: Path, name: str) -> None:
    wheel = build_wheel(source / "wheels", "alpha", "1.5")
    (source / "env" / "tiny.lock").write_text(_pin(wheel, "1.5"))
    _configure(source, name, "tiny", WHEELS="wheels")
    opsctl("container", "build", timeout_s=500).ok()

    (source / "trainer" / "new.py").write_text("")
    again = opsctl("container", "build", timeout_s=300).ok()
    assert re.search(r"COPY --from=env /opt/env/ .*\n ---> Using cache", again.err), "code comes after the set"

    opsctl("container", "up").ok()
    assert opsctl("exec", "--", "id", "-un").out == "opsctl\n"
    imported = opsctl("exec", "--", "python", "-c", "import alpha, sys; print(alpha.VERSION, sys.prefix)")
    assert imported.ok().out == "1.5 /opt/env\n"
    assert opsctl("exec", "--", "cat", "/opt/trainer/trainer/new.py").code == 0
    assert opsctl("exec", "--", "ls", "/build").code != 0
    version = opsctl("exec", "--", "uv", "--version").ok().out
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"uv=={version.split()[1]}" in pinned
    health = ran("docker", "image", "inspect", "--format", "{{index .Config.Healthcheck.Test 1}}", name)
    opsctl("exec", "--", "sh", "-c", health).ok()
    opsctl("doctor", "--json").ok()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_trainers_own_set_runs_in_the_image(opsctl: Opsctl, source: Path, name: str) -> None:
    (source / "wheels").mkdir()
    for wheel in torch_wheels():
        shutil.copy(wheel, source / "wheels")
    _configure(source, name, "cpu", WHEELS="wheels")
    opsctl("container", "build", timeout_s=1500).ok()
    opsctl("container", "up").ok()
    compiled = "import torch; print(torch.compile(lambda x: x + 1)(torch.ones(2)).tolist())"
    assert opsctl("exec", "--", "python", "-c", compiled, timeout_s=200).ok().out == "[2.0, 2.0]\n"
    assert "train" in opsctl("exec", "--", "python", "-m", "trainer", "--help").ok().out
