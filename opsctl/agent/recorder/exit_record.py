"""exit.json: written once, whole, also when the disk is full, since its room was taken when the run began."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from opsctl.agent.files import fsync_folder, write_atomic
from opsctl.records import ExitRecord, to_json

RESERVED_BYTES = 64 * 1024


class ExitFile:
    """Holds room for the record on the disk until it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reserve = path.with_name(path.name + ".reserve")
        self._descriptor = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._descriptor, b" " * RESERVED_BYTES, 0)

    def write(self, record: ExitRecord) -> None:
        """Put the record in place: in its own room, or beside it where it has outgrown that."""
        data = json.dumps(to_json(record), indent=1).encode() + b"\n"
        try:
            if len(data) > RESERVED_BYTES:
                raise OSError(f"{len(data)} bytes do not fit")
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
            self._reserve.replace(self._path)
            fsync_folder(self._path.parent)
        except OSError:  # a file system that copies on write may need new room: give ours back first
            with contextlib.suppress(OSError):  # the same fault shows itself, and is raised, in the next line
                self._reserve.unlink(missing_ok=True)
            write_atomic(self._path, data)
        finally:
            os.close(self._descriptor)
