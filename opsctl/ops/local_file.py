"""A file of this machine on its way to a target or from an index: its bytes in pieces, its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from opsctl.formats.frames import CHUNK_BYTES


def pieces(path: Path, start: int = 0) -> Iterator[bytes]:
    """The file's bytes from `start` on, as uploads take them."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while data := file.read(CHUNK_BYTES):
            yield data


def sha256_of_file(path: Path) -> str:
    """The file's hash in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
