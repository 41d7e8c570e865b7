"""Gives every file of a fresh environment bytes of its own: uv linked them, and one read both copies and hashes.

uv copies the files of a wheel one after the other, and a check would read all of them once more.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.env.manifest import Seen

_PIECE_BYTES = 1 << 18  # what a core's own cache holds: hashed and written without going back to memory
_BATCH_COST = 16 << 20
_FILE_COST = 100_000  # in bytes: what making a file costs beside its bytes
_TOLD_TIMES = 20

Told = Callable[[int, int], None]  # bytes done, bytes in all
_Own = tuple[str, int, int]  # sha256, size and time of a file from now on: plain, since each crosses a pipe


@dataclass(frozen=True)
class Owned:
    """The regular files of an environment once none shares its bytes, and their hashes."""

    files: dict[str, Seen]
    hashes: dict[str, str]


def own_copies(pool: Executor, root: Path, files: dict[str, Seen], *, told: Told) -> Owned:
    """Copy what has another name elsewhere, and hash everything; raises OSError where the disk refuses."""
    regular = {path: seen.size for path, seen in files.items() if seen.link is None}
    done, shown, total = 0, 0, sum(regular.values())
    owned, hashes = dict(files), dict[str, str]()
    lots = list(batches(regular))
    for lot, found in zip(lots, pool.map(functools.partial(_own, str(root)), lots), strict=True):
        for path, (sha256, size, mtime_ns) in zip(lot, found, strict=True):
            owned[path], hashes[path] = Seen(size, mtime_ns), sha256
            done += size
        if (share := done * _TOLD_TIMES // max(total, 1)) > shown:
            shown = share
            told(done, total)
    return Owned(owned, hashes)


def batches(sizes: dict[str, int]) -> Iterator[list[str]]:
    """The paths in lots of about equal work, in their order but for the largest, which come first; pure.

    >>> list(batches({"a/1": 1, "a/2": 1, "b": 1 << 30}))
    [['b'], ['a/1', 'a/2']]
    """
    large = sorted((path for path, size in sizes.items() if size >= _BATCH_COST), key=lambda path: -sizes[path])
    yield from ([path] for path in large)
    lot, cost = [], 0
    for path, size in sizes.items():
        if size < _BATCH_COST:
            lot.append(path)
            cost += size + _FILE_COST
        if cost >= _BATCH_COST:
            yield lot
            lot, cost = [], 0
    if lot:
        yield lot


def _own(root: str, paths: Iterable[str]) -> list[_Own]:
    buffer = memoryview(bytearray(_PIECE_BYTES))
    return [_own_one(f"{root}/{path}", buffer) for path in paths]


def _own_one(path: str, buffer: memoryview) -> _Own:
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(source)
        if before.st_nlink == 1:
            return _hashed(source, buffer, lambda piece: None), before.st_size, before.st_mtime_ns
        os.unlink(path)  # noqa: PTH108 - tens of thousands: no Path for each
        copy = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, before.st_mode & 0o777)
        try:
            sha256 = _hashed(source, buffer, functools.partial(_write, copy))
            after = _finished(copy, before)
            return sha256, after.st_size, after.st_mtime_ns
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _hashed(source: int, buffer: memoryview, take: Callable[[memoryview], None]) -> str:
    """Read the file once, and hand on each piece of it."""
    state = hashlib.sha256()
    while num_bytes := os.readv(source, [buffer]):
        piece = buffer[:num_bytes]
        state.update(piece)
        take(piece)
    return state.hexdigest()


def _write(copy: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(copy, piece) :]


def _finished(copy: int, before: os.stat_result) -> os.stat_result:
    """How the copy is seen, with the mode of what it was made from."""
    now = os.fstat(copy)
    if now.st_mode != before.st_mode:  # our umask is no business of what wheels bring
        os.fchmod(copy, before.st_mode & 0o777)  # whatever runs as another user there is not to run as us
    return now
