"""train.log and its time index: appended to, never rewritten; a full disk costs at most what no memory could hold."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from opsctl.agent.files import file_mode

BACKLOG_LIMIT_BYTES = 1 << 20
_LOST = b"\n[opsctl: %d bytes of output are missing here, since the disk was full]\n"


class AppendFile:
    """A file that only grows; what cannot be written waits in memory, up to a limit, and is tried again."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, file_mode(path.parent))
        self._backlog = b""
        self.size = os.fstat(self._descriptor).st_size
        self.num_lost_bytes = 0
        self._num_told_bytes = 0  # lost, and said so in the file

    @property
    def num_missing_bytes(self) -> int:
        """How much of what was added is not in the file now: it waits or is lost."""
        return self._num_told_bytes + self.num_lost_bytes + len(self._backlog)

    @property
    def is_behind(self) -> bool:
        """Whether something waits that could not be written."""
        return bool(self._backlog) or self.num_lost_bytes > 0

    @property
    def end(self) -> int:
        """The offset that the next byte gets."""
        return self.size + len(self._backlog)

    def append(self, data: bytes) -> int | None:
        """Add `data`; returns its offset, or None where it is lost."""
        self.retry()
        if self.num_lost_bytes or (self._backlog and len(self._backlog) + len(data) > BACKLOG_LIMIT_BYTES):
            self.num_lost_bytes += len(data)
            return None
        offset = self.end
        self._backlog = self._backlog + data if self._backlog else self._write(data)
        return offset

    def retry(self) -> None:
        """Try to write what waits."""
        if self._backlog:
            self._backlog = self._write(self._backlog)
        if self.num_lost_bytes and not self._backlog:
            self._backlog = self._write(_LOST % self.num_lost_bytes)
            self._num_told_bytes += self.num_lost_bytes
            self.num_lost_bytes = 0

    def _write(self, data: bytes) -> bytes:
        """Write what can be written; returns the rest."""
        try:
            while data:
                written = os.write(self._descriptor, data)
                self.size += written
                data = data[written:]
        except OSError:  # full, over quota, or a sick disk: the job must go on in every case
            return data
        return b""

    def close(self) -> None:
        """Bring everything to the disk, as far as the disk takes it."""
        self.retry()
        with contextlib.suppress(OSError):  # a sick disk: the exit record tells what was written
            os.fsync(self._descriptor)
        os.close(self._descriptor)


class Log:
    """The job's output, whole, and rows `offset time`: the bytes from that offset on were seen at that time."""

    def __init__(self, path: Path, index_path: Path) -> None:
        self._file = AppendFile(path)
        self._index = AppendFile(index_path)

    @property
    def size(self) -> int:
        """The bytes in the file."""
        return self._file.size

    @property
    def end(self) -> int:
        """The offset that the next byte gets."""
        return self._file.end

    @property
    def num_missing_bytes(self) -> int:
        """How much of the output is not in the file; after `close` that is final."""
        return self._file.num_missing_bytes

    @property
    def is_behind(self) -> bool:
        """Whether output waits for space on the disk, or was lost for lack of it."""
        return self._file.is_behind

    def append(self, data: bytes, time: float) -> int | None:
        """Add output seen at `time`; returns its offset, or None where it is lost."""
        offset = self._file.append(data)
        if offset is not None:
            self._index.append(b"%d %.3f\n" % (offset, time))
        return offset

    def retry(self) -> None:
        """Try again to write what waits for space."""
        self._file.retry()
        self._index.retry()

    def close(self) -> None:
        """Bring everything to the disk."""
        self._file.close()
        self._index.close()
