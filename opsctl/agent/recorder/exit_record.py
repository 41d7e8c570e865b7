"""exit.json: written once, whole, also when the disk is full, since its room was taken when the run began."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from opsctl.agent.files import file_mode, fsync_folder, write_atomic
from opsctl.agent.recorder.loop import Loop
from opsctl.records.call import to_json
from opsctl.records.run import ExitRecord

RESERVED_BYTES = 64 * 1024
LIMIT_S = 300.0  # how long a disk is asked again to take the record
AGAIN_S = 1.0


class ExitFile:
    """Holds room for the record on the disk until it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reserve = path.with_name(path.name + ".reserve")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._descriptor: int | None = os.open(self._reserve, flags, file_mode(path.parent))
        os.pwrite(self._descriptor, b" " * RESERVED_BYTES, 0)

    def write(self, record: ExitRecord) -> None:
        """Put the record in place: in its own room, or else beside it; after an OSError it may be tried again."""
        data = json.dumps(to_json(record), indent=1).encode() + b"\n"
        if self._descriptor is not None and len(data) <= RESERVED_BYTES:
            with contextlib.suppress(OSError):  # a file system that copies on write may want new room even so
                self._write_in_place(self._descriptor, data)
                return
        self._give_room_back()
        write_atomic(self._path, data)

    def insist(self, loop: Loop, record: ExitRecord, then: Callable[[], None]) -> None:
        """Write the record, then go on; a disk that takes nothing is asked again for a while, a gone folder is not."""
        self._try(loop, record, then, time.monotonic() + LIMIT_S)

    def _try(self, loop: Loop, record: ExitRecord, then: Callable[[], None], deadline: float) -> None:
        try:
            self.write(record)
        except OSError as error:
            if self._path.parent.is_dir() and time.monotonic() < deadline:
                loop.later(AGAIN_S, lambda: self._try(loop, record, then, deadline))
                return
            loop.complain(f"the exit record cannot be written: {error}")
        then()

    def _write_in_place(self, descriptor: int, data: bytes) -> None:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
        self._reserve.replace(self._path)
        fsync_folder(self._path.parent)

    def _give_room_back(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with contextlib.suppress(OSError):  # the same fault shows itself in what comes next
            self._reserve.unlink(missing_ok=True)
