"""Packs of bytecode: what they are named by, and that a damaged one is never used."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.agent.env.bytecode import Bytecode, Sources, key, packed, unpacked
from opsctl.agent.env.install import Installed
from opsctl.agent.env.manifest import listing
from opsctl.agent.env.python import facts
from opsctl.agent.env.wheels import Distribution, Recorded
from opsctl.agent.hashing import digests
from opsctl.agent.home import Home
from opsctl.agent.jobs import Progress

_FOUND = facts(sys.executable)
assert _FOUND is not None
PYTHON = _FOUND
PACKAGES = "lib/site-packages"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.ensure()
    return found


def _installed(root: Path, sources: dict[str, str]) -> Installed:
    """An environment of one distribution with these sources."""
    for name, text in sources.items():
        (root / PACKAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (root / PACKAGES / name).write_text(text)
    files = listing(root)
    rows = tuple(Recorded(f"{PACKAGES}/{name}", "sha256", "") for name in sources)
    return Installed(files, dict(digests(root, files.files)), (Distribution("a", "1", "", rows),))


def _fill(home: Home, root: Path, installed: Installed, tmp_path: Path) -> str:
    """Fill it, and tell what was said about it."""
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").unlink(missing_ok=True)
    with contextlib.closing(Progress(run)) as progress, ThreadPoolExecutor(1) as pool:
        Bytecode(home, PYTHON).fill(root, installed, progress, interpreter=Path(sys.executable), pool=pool)
    return (run / "metrics.jsonl").read_text()


def _compiled(root: Path, name: str) -> Path:
    folder, _, stem = f"{PACKAGES}/{name}".rpartition("/")
    return root / folder / "__pycache__" / f"{stem.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"


def test_a_second_environment_gets_the_bytecode_of_the_first_with_its_own_times(home: Home, tmp_path: Path) -> None:
    sources = {"a/__init__.py": "X = 1\n", "a/bad.py": "not python at all\n"}
    first, second = tmp_path / "one", tmp_path / "two"
    assert "compile" in _fill(home, first, _installed(first, sources), tmp_path)
    _installed(second, sources)
    os.utime(second / PACKAGES / "a/__init__.py", (1e9, 1e9))
    installed = dataclasses.replace(_installed(first, sources), files=listing(second))
    assert _fill(home, second, installed, tmp_path) == "", "nothing is compiled"
    data = _compiled(second, "a/__init__.py").read_bytes()
    assert struct.unpack("<I", data[8:12]) == (10**9,)
    assert data[16:] == _compiled(first, "a/__init__.py").read_bytes()[16:]
    assert not _compiled(second, "a/bad.py").exists()


def test_bytecode_goes_by_time_whatever_the_machine_asks_for(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    root = tmp_path / "one"
    _fill(home, root, _installed(root, {"a.py": "X = 1\n"}), tmp_path)
    assert _compiled(root, "a.py").read_bytes()[4:8] == bytes(4), "a time follows, no hash"


def test_another_source_or_python_is_another_pack() -> None:
    some = Sources("a==1", {"a.py": "00"})
    other = dataclasses.replace(PYTHON, version="3.99.1")
    assert len({key(some, PYTHON), key(Sources("a==1", {"a.py": "01"}), PYTHON), key(some, other)}) == 3


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_damaged_pack_is_compiled_anew(home: Home, tmp_path: Path, place: int) -> None:
    sources = {"a.py": "X = 1\n"}
    first, second = tmp_path / "one", tmp_path / "two"
    _fill(home, first, _installed(first, sources), tmp_path)
    (pack,) = home.bytecode.iterdir()
    damaged = bytearray(pack.read_bytes())
    damaged[place] ^= 1
    pack.write_bytes(damaged)
    with pytest.raises(ValueError, match="changed or cut"):
        list(unpacked(bytes(damaged)))
    assert "compile" in _fill(home, second, _installed(second, sources), tmp_path)
    assert list(unpacked(pack.read_bytes())), "and kept whole"


def test_bytecode_that_came_with_the_files_is_not_trusted(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "one"
    _installed(root, {"a.py": "X = 1\n"})
    brought = _compiled(root, "a.py")
    brought.parent.mkdir()
    brought.write_bytes(b"evil")
    (brought.parent / "stray.pyc").write_bytes(b"evil")
    _fill(home, root, _installed(root, {"a.py": "X = 1\n"}), tmp_path)
    assert b"evil" not in brought.read_bytes()
    assert not (brought.parent / "stray.pyc").exists()


def test_the_group_of_a_shared_home_may_write_beside_the_packs(home: Home, tmp_path: Path) -> None:
    home.root.chmod(0o2770)
    before = os.umask(0o007)
    try:
        _fill(home, tmp_path / "one", _installed(tmp_path / "one", {"a/__init__.py": "X = 1\n"}), tmp_path)
    finally:
        os.umask(before)
    assert home.bytecode.stat().st_mode & 0o777 == 0o770
    assert {pack.stat().st_mode & 0o777 for pack in home.bytecode.iterdir()} == {0o660}


def test_a_pack_is_what_was_packed() -> None:
    members = {"a/b.py": b"1234", "c.py": b""}
    assert {name: bytes(data) for name, data in unpacked(packed(members))} == members
