"""uv for a machine of another kind than ours: fetched from the configured place, by the hashes that opsctl pins."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import struct
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest
import tomllib

from opsctl.errors import CommandFailed, MissingTool
from opsctl.ops.tools import UV_PROGRAMS, UvHashes, local_uv, uv_for
from opsctl.ops.workspace import Workspace, open_workspace

EM_AARCH64 = 183
PROGRAM = struct.pack("<4sBBBB8xHH", b"\x7fELF", 2, 1, 1, 0, 2, EM_AARCH64) + bytes(range(256))
VERSION = next(
    row.removeprefix("uv==")
    for row in tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]
    if row.startswith("uv==")
)


def _machine(program: Path) -> int:
    """The machine that an ELF file's header names."""
    magic, machine = struct.unpack("<4s14xH", program.read_bytes()[:20])
    assert magic == b"\x7fELF"
    return int(machine)


def _offer(folder: Path, program: bytes) -> str:
    """Write a wheel of uv for aarch64 that holds this program; its sha256."""
    folder.mkdir(exist_ok=True)
    info = f"uv-{VERSION}.dist-info"
    content = {
        f"uv-{VERSION}.data/scripts/uv": program,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: uv\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux2014_aarch64\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in content.items()}
    rows = [f"{name},sha256={digests[name].rstrip(b'=').decode()},{len(content[name])}" for name in content]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"uv-{VERSION}-py3-none-manylinux2014_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project whose only source of wheels is a folder; caches are the test's own."""
    for name, folder in {"XDG_CACHE_HOME": "cache", "UV_CACHE_DIR": "uv"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    settings = {"default_target": "t", "targets": {"t": {}}, "env": {"find_links": [str(tmp_path / "wheels")]}}
    (tmp_path / "opsctl.yaml").write_text(json.dumps(settings))
    return open_workspace(tmp_path / "opsctl.yaml", None)


def _pin(monkeypatch: pytest.MonkeyPatch, wheel: str, program: bytes) -> None:
    monkeypatch.setitem(UV_PROGRAMS, "aarch64", UvHashes(wheel, hashlib.sha256(program).hexdigest()))


def test_uv_for_another_machine_is_fetched_once(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pin(monkeypatch, _offer(tmp_path / "wheels", PROGRAM), PROGRAM)
    found = uv_for(workspace, "aarch64")
    assert _machine(found.path) == EM_AARCH64
    assert found.tool.sha256 == hashlib.sha256(PROGRAM).hexdigest()
    assert found.path.read_bytes() == PROGRAM
    next((tmp_path / "wheels").iterdir()).unlink()
    assert uv_for(workspace, "aarch64") == found, "kept"
    found.path.write_bytes(b"changed")
    with pytest.raises(CommandFailed):
        uv_for(workspace, "aarch64")


def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _offer(tmp_path / "wheels", PROGRAM)
    _pin(monkeypatch, "0" * 64, PROGRAM)
    with pytest.raises(CommandFailed) as caught:
        uv_for(workspace, "aarch64")
    assert f"its file has hash sha256:{found}, the lock says sha256:{'0' * 64}" in caught.value.message


def test_a_program_that_is_not_the_pinned_one_is_refused(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pin(monkeypatch, _offer(tmp_path / "wheels", PROGRAM), b"another")
    with pytest.raises(CommandFailed, match="uv for aarch64 has hash"):
        uv_for(workspace, "aarch64")


def test_a_machine_that_uv_is_not_pinned_for_is_named(workspace: Workspace) -> None:
    with pytest.raises(MissingTool, match="is riscv64") as caught:
        uv_for(workspace, "riscv64")
    assert "aarch64, x86_64" in caught.value.hint


def test_ours_is_the_pinned_one_and_is_used_where_it_runs(workspace: Workspace) -> None:
    found = uv_for(workspace, platform.machine())
    assert found == local_uv()
    assert VERSION in found.tool.name
    if platform.machine() in UV_PROGRAMS:
        assert found.tool.sha256 == UV_PROGRAMS[platform.machine()].program


def test_the_index_serves_what_is_pinned_for_every_machine(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        urllib.request.urlopen("https://pypi.org/simple/uv/", timeout=10).close()
    except (OSError, urllib.error.URLError) as error:
        pytest.skip(f"no index: {error}")
    monkeypatch.setenv("UV_OFFLINE", "0")
    (tmp_path / "wheels").mkdir()
    other = next(machine for machine in UV_PROGRAMS if machine != platform.machine())
    try:
        found = uv_for(workspace, other)
    except CommandFailed as error:
        if "hash" in error.message:
            raise
        pytest.skip(f"the index did not serve it this time: {error.message}")
    assert _machine(found.path) == {"aarch64": EM_AARCH64, "x86_64": 62}[other]
