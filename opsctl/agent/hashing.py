"""Hashes of files, on all cores where there are many."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_PIECE_BYTES = 1 << 20
_FILES_AT_ONCE = 64  # of one thread: handing over single small files costs more than their hashes


def digest(path: Path | str, algorithm: str = "sha256") -> str:
    """The file's hash in hexadecimal."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # thousands of small files: no file object
    try:
        data = os.read(descriptor, _PIECE_BYTES)
        state = hashlib.new(algorithm, data)
        while data:
            data = os.read(descriptor, _PIECE_BYTES)
            state.update(data)
    finally:
        os.close(descriptor)
    return state.hexdigest()


def digests(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each path below `root` with its sha256, in the order given."""
    ordered = list(paths)
    if not ordered:
        return
    from concurrent.futures import ThreadPoolExecutor  # 15 ms that a look without hashing must not pay

    some = [ordered[start : start + _FILES_AT_ONCE] for start in range(0, len(ordered), _FILES_AT_ONCE)]

    def hashed(group: list[str]) -> list[tuple[str, str]]:
        return [(path, digest(f"{root}/{path}")) for path in group]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) + 1) as pool:
        for found in pool.map(hashed, some):
            yield from found
