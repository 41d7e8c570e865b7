"""Files that share their bytes with others get their own, hashed on the way; what they were linked to stays."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.agent.env.copies import Owned, own_copies
from opsctl.agent.env.install import refuse_hard_links
from opsctl.agent.env.manifest import listing
from opsctl.agent.env.space import link_mode
from opsctl.errors import CommandFailed

LARGE = (1 << 20) + 7  # more than a piece, and no whole number of them


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "large.so").write_bytes(bytes(range(256)) * (LARGE // 256) + b"1234567")
    (folder / "empty.py").touch()
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o775)
    return folder


def _linked(cache: Path, root: Path) -> Path:
    (root / "lib").mkdir(parents=True)
    for path in cache.iterdir():
        (root / "lib" / path.name).hardlink_to(path)
    (root / "lib" / "own.py").write_text("X = 1\n")
    (root / "lib64").symlink_to("lib")
    return root


def _own(root: Path, told: list[tuple[int, int]]) -> Owned:
    with ThreadPoolExecutor(2) as pool:
        return own_copies(pool, root, listing(root).files, told=lambda done, total: told.append((done, total)))


def test_linked_files_get_bytes_of_their_own_and_all_are_hashed(cache: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    root, told = _linked(cache, tmp_path / "env"), list[tuple[int, int]]()
    umask = os.umask(0o077)
    try:
        owned = _own(root, told)
    finally:
        os.umask(umask)
    for path in (root / "lib").iterdir():
        assert path.stat().st_nlink == 1, path.name
        assert path.read_bytes() == before.get(path.name, b"X = 1\n")
        assert owned.hashes[f"lib/{path.name}"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (root / "lib" / "run").stat().st_mode & 0o777 == 0o775
    assert owned.files == listing(root).files, "as a listing sees them afterwards"
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before
    assert told[-1][0] == told[-1][1] > LARGE


def test_what_still_shares_its_bytes_is_refused(cache: Path, tmp_path: Path) -> None:
    root = _linked(cache, tmp_path / "env")
    with pytest.raises(CommandFailed, match="shares its bytes with 1 other"):
        refuse_hard_links(listing(root))
    _own(root, [])
    refuse_hard_links(listing(root))


def test_an_edit_no_longer_reaches_the_cache(cache: Path, tmp_path: Path) -> None:
    root = _linked(cache, tmp_path / "env")
    _own(root, [])
    with (root / "lib" / "run").open("a") as file:
        file.write("exit 1\n")
    assert (cache / "run").read_text() == "#!/bin/sh\n"


def test_a_copy_never_runs_as_whoever_made_it(cache: Path, tmp_path: Path) -> None:
    (cache / "run").chmod(0o6775)
    root = _linked(cache, tmp_path / "env")
    _own(root, [])
    assert (root / "lib" / "run").stat().st_mode & 0o7777 == 0o775
    assert (cache / "run").stat().st_mode & 0o7777 == 0o6775


def test_what_cannot_be_read_is_named(cache: Path, tmp_path: Path) -> None:
    root = _linked(cache, tmp_path / "env")
    files = listing(root).files
    (root / "lib" / "run").unlink()
    with ThreadPoolExecutor(2) as pool, pytest.raises(FileNotFoundError, match="lib/run"):
        own_copies(pool, root, files, told=lambda done, total: None)


def test_how_uv_may_fill_an_environment_is_tried(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    assert link_mode(cache, tmp_path / "envs") in ("clone", "hardlink")
    assert link_mode(cache, Path("/proc")) == "copy", "where nothing can be made"
    assert sorted(path.name for path in cache.iterdir()) == ["empty.py", "large.so", "run"]
    assert list((tmp_path / "envs").iterdir()) == []
