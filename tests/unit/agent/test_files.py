"""What killed writers left is removed, what may still be written is not, and nothing is followed."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.snapshot import sweep_of
from opsctl.agent.env.build import sweep_envs
from opsctl.agent.files import remove, sweep
from opsctl.agent.home import Home
from opsctl.agent.jobs import Progress

LONG_AGO = (1e9, 1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "folder"
    found.mkdir()
    return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.ensure()
    return found


def _old(path: Path) -> Path:
    path.touch()
    os.utime(path, LONG_AGO)
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_what_is_old_and_named_is_swept(folder: Path) -> None:
    _old(folder / ".a.1.part")
    _old(folder / "kept")
    (folder / ".b.2.part").touch()
    sweep(folder, ".*.part", ".clone-*")
    assert _names(folder) == [".b.2.part", "kept"]


def test_a_link_goes_and_what_it_leads_to_stays(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "link").symlink_to("inner")
    (folder / "broken").symlink_to("nowhere")
    for name in ("link", "broken", "never-there"):
        remove(folder / name)
    assert _names(folder) == ["inner"]


def test_several_may_remove_one_folder_at_once(folder: Path) -> None:
    for number in range(300):
        path = folder / "tree" / f"{number % 20}" / f"{number}"
        path.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remove, [folder / "tree"] * 4))
    assert _names(folder) == []


def test_a_rebuild_sweeps_what_killed_ones_left(home: Home, tmp_path: Path) -> None:
    for name in (".active.7.part", ".0123456789ab.7.part", ".clone-7"):
        _old(home.envs / name)
    (home.envs / ".active.8.part").symlink_to("somewhere")
    (home.envs / "0123-left" / "lib").mkdir(parents=True)
    with contextlib.closing(Progress(tmp_path)) as progress:
        sweep_envs(home, progress)
    assert _names(home.envs) == [".active.8.part"], "an activation may be at it just now"


def test_a_snapshot_sweeps_what_killed_ones_of_its_key_left(home: Home) -> None:
    key, digest = CacheKey({"torch": "1"}), CacheKey({"torch": "1"}).digest
    half = f".20260101-{digest[:8]}-0123456789ab.tar.gz.7.part"
    for name in (half, f"20260101-{digest[:8]}-0123456789ab.json", ".incoming-00.part", f".staging-{'0' * 16}"):
        _old(home.snapshots / name)
    (home.snapshots / f".staging-{digest}").mkdir()
    stands = f"20260102-{digest[:8]}-0123456789ab"
    pushed = f"20260103-{digest[:8]}-0123456789ab.json"
    for name in (f"{stands}.json", f"{stands}.tar.gz"):
        _old(home.snapshots / name)
    (home.snapshots / pushed).touch()
    sweep_of(home, key)
    left = sorted([".incoming-00.part", f".staging-{'0' * 16}", f"{stands}.json", f"{stands}.tar.gz", pushed])
    assert _names(home.snapshots) == left, "another key's, a half that was pushed, and what stands or comes"
