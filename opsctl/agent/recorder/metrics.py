"""Follows metrics.jsonl, which a job may write, rewrite, or never make."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 1 << 18


class MetricsTail:
    """Gives what was added since the last look; a file that shrank or was replaced is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self.offset = 0

    def read(self) -> tuple[int, bytes]:
        """Where the new bytes begin, and the bytes."""
        try:
            found = self._path.stat()
        except OSError:
            return self.offset, b""
        if found.st_ino != self._inode or found.st_size < self.offset:
            self._inode, self.offset = found.st_ino, 0
        if found.st_size == self.offset:
            return self.offset, b""
        return self._read_on()

    def _read_on(self) -> tuple[int, bytes]:
        start = self.offset
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return start, b""
        try:
            data = os.pread(descriptor, _CHUNK_BYTES, start)
        finally:
            os.close(descriptor)
        self.offset += len(data)
        return start, data
