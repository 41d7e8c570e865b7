"""A set whose Python the target lacks: named with the way out, or brought by uv from where the configuration says."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.envs import Envs

pytestmark = pytest.mark.tmux

SYSTEM = "/usr/bin/python3"
VERSION = platform.python_version()
BASE = Path(sys.base_prefix)
BUILD = "20260101"
# the address that a mirror stands in for
RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"


def _is_needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What an interpreter needs to start; the rest makes archives large."""
    left_out = ("/site-packages/", "/test/", "/__pycache__", "/config-", "/idlelib", "/lib2to3", "/share/", "/include/")
    return None if any(part in member.name for part in left_out) else member


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python that runs these tests, packed as uv's archives are."""
    path = tmp_path_factory.mktemp("mirror") / BUILD / "python.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name in ("bin", "lib"):
            tar.add(BASE / name, f"python/{name}", filter=_is_needed)
    return path


@pytest.fixture
def lacking(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> Envs:
    """A target with the system's Python alone, and a set that wants this one to the last number."""
    if not Path(SYSTEM).exists():
        pytest.skip(f"no {SYSTEM}")
    found = subprocess.run([SYSTEM, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    version = found.stdout.decode().strip()
    if version == VERSION or tuple(map(int, version.split(".")[:2])) < (3, 10):
        pytest.skip(f"{SYSTEM} is {version}: it is what the set wants, or too old for the agent")
    tmux = shutil.which("tmux")
    assert tmux is not None, "the tests need it"
    monkeypatch.setenv("PATH", f"/usr/bin:/bin:{Path(tmux).parent}")
    row = f"# opsctl: python = {VERSION}\n"
    envs.lock.write_text(row + envs.lock.read_text().partition("\n")[2])
    return envs


def _configure(envs: Envs, **settings: str) -> None:
    target = {"home": str(envs.home), "python": SYSTEM}
    env = {"name": "tiny", "find_links": [str(envs.wheels)], **settings}
    envs.configure(targets={"here": target}, env=env)


def _listed(envs: Envs, archive: Path, sha256: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv know of this archive alone."""
    major, minor, patch = map(int, VERSION.split("."))
    row = {
        **{"name": "cpython", "arch": {"family": platform.machine(), "variant": None}, "os": "linux", "libc": "gnu"},
        **{"major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": BUILD},
        **{"url": f"{RELEASES}/{BUILD}/{archive.name}", "sha256": sha256},
    }
    path = envs.project / "downloads.json"
    path.write_text(json.dumps({f"cpython-{VERSION}-linux-{platform.machine()}-gnu": row}))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(path))
    monkeypatch.setenv("UV_OFFLINE", "0")


def test_a_missing_python_is_named_with_what_is_there_and_the_ways_out(lacking: Envs) -> None:
    _configure(lacking)
    failed = lacking.opsctl("env", "rebuild")
    assert failed.code == 6
    for words in (f"the set wants Python {VERSION}", SYSTEM, "env.python_mirror", "apt-get install"):
        assert words in failed.err


def test_a_missing_python_is_brought_and_found_again(
    lacking: Envs, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _listed(lacking, archive, hashlib.sha256(archive.read_bytes()).hexdigest(), monkeypatch)
    _configure(lacking, python_mirror=archive.parents[1].as_uri(), index_url=f"file://{lacking.project}")
    found = lacking.rebuild()
    assert found["outcome"]["record"]["python"] == VERSION
    assert Path(found["outcome"]["path"], "bin/python").resolve().is_relative_to(lacking.home / "pythons")
    again = lacking.rebuild()
    assert (again["outcome"]["is_new"], again["run_id"]) == (False, "")
    assert lacking.verify("--full") == []


def test_a_python_with_another_hash_is_refused(lacking: Envs, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _listed(lacking, archive, "0" * 64, monkeypatch)
    _configure(lacking, python_mirror=archive.parents[1].as_uri())
    failed = lacking.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "0" * 64 in failed.err
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in failed.err
    assert not list(lacking.home.glob("pythons/cpython-*"))


def test_the_mirror_is_asked(lacking: Envs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    _configure(lacking, python_mirror="http://ana:s3cret@127.0.0.1:1/releases")
    failed = lacking.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "127.0.0.1:1/releases" in failed.err
    assert "s3cret" not in failed.err
