"""Snapshots and restores that are killed or starved: what stood before stands after, whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.support.caches import Caches
from tests.support.runs import processes_with
from tests.support.until import until

pytestmark = pytest.mark.tmux

# many files, so that a snapshot of them can be caught in the middle
MANY = """
import os, pathlib
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(parents=True)
for number in range(3000):
    (folder / f"{number}.so").write_bytes(os.urandom(5000))
"""


@pytest.fixture
def small_disk(caches: Caches) -> Iterator[Caches]:
    """The target's home on a file system of 24 MiB, with a warm cache of 4 MiB in it."""
    caches.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", caches.home], check=True)
    program = MANY.replace("3000", "800")
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", program]})
    caches.prewarm()
    yield caches
    subprocess.run(["umount", "--lazy", caches.home], check=True)


def _fill(caches: Caches, leave_mib: float) -> None:
    free = shutil.disk_usage(caches.home).free
    (caches.home / "filler").write_bytes(bytes(int(free - leave_mib * 2**20)))


@pytest.mark.root
def test_a_snapshot_or_restore_without_room_changes_nothing(small_disk: Caches) -> None:
    before = small_disk.files()
    _fill(small_disk, 5)
    full = small_disk.opsctl("cache", "snapshot", "--job", "small")
    assert (full.code, "MiB are free" in full.err) == (5, True)
    assert list(small_disk.snapshots.iterdir()) == []
    assert small_disk.files() == before
    (small_disk.home / "filler").unlink()
    saved = small_disk.snapshot()["snapshot"]["snapshot_id"]
    shutil.rmtree(small_disk.folder())
    _fill(small_disk, 2)
    full = small_disk.restore()
    assert (full.code, "MiB are free" in full.err) == (5, True)
    assert list(small_disk.live.iterdir()) == []
    (small_disk.home / "filler").unlink()
    assert small_disk.restore("--json").ok().json()["snapshot_id"] == saved
    assert small_disk.files() == before


def test_a_killed_snapshot_leaves_none_and_the_next_one_stands(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", MANY]})
    caches.prewarm()
    before = caches.files()
    words = [COMMAND, "cache", "snapshot", "--job", "small"]
    client = subprocess.Popen(words, cwd=caches.project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: list(caches.snapshots.glob(".staging-*/*/*")) if caches.snapshots.is_dir() else [])
    for run in caches.home.glob("runs/cache-snapshot-*"):
        for pid in processes_with(f"OPSCTL_RUN_ID={run.name}"):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, signal.SIGKILL)
    _, said = client.communicate(timeout=60)
    assert (client.returncode, "killed by signal 9" in said) == (5, True), said
    assert [path for path in caches.snapshots.iterdir() if not path.name.startswith(".")] == []
    assert caches.files() == before
    assert caches.snapshot()["is_new"]
    assert sorted(path.suffix for path in caches.snapshots.iterdir()) == [".json", ".zst"]


def test_a_killed_restore_leaves_the_live_cache_as_it_was(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", MANY]})
    caches.prewarm()
    caches.snapshot()
    before = caches.files()
    (caches.folder() / "triton" / "new.so").write_bytes(b"unsaved")
    words = [COMMAND, "cache", "restore", "--replace", "--job", "small"]
    client = subprocess.Popen(words, cwd=caches.project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: list(caches.live.glob(".restore-*/*/*")))
    client.kill()
    client.wait()
    until(lambda: not [pid for pid in processes_with("LC_ALL=C.UTF-8") if _is_restoring(pid, caches)])
    assert caches.files() == {**before, "triton/new.so": b"unsaved"}
    other = caches.live / f".restore-{'0' * 16}"
    other.mkdir()
    caches.restore("--replace").ok()
    assert list(caches.live.glob(".restore-*")) == [other], "another key's, which may be at work"
    other.rmdir()
    assert caches.files() == before


def _is_restoring(pid: int, caches: Caches) -> bool:
    with contextlib.suppress(OSError):  # ended
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b"cache-restore" in words and any(str(caches.home).encode() in word for word in words)
    return False
