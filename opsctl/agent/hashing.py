"""Hashes of files, on all cores where there are many."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def digest(path: Path, algorithm: str = "sha256") -> str:
    """The file's hash in hexadecimal."""
    state = hashlib.new(algorithm)
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK_BYTES):
            state.update(data)
    return state.hexdigest()


def digests(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each path below `root` with its sha256, in the order given."""
    ordered = list(paths)
    if not ordered:
        return
    from concurrent.futures import ThreadPoolExecutor  # 15 ms that a look without hashing must not pay

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) + 1) as pool:
        yield from zip(ordered, pool.map(lambda path: digest(root / path), ordered), strict=True)
