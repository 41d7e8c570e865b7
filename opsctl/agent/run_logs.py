"""Verb run-logs: the bytes of a run's log from an offset on, exactly, and on to the end of the run."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.agent.run_queries import ENDED, status_of
from opsctl.agent.run_state import find
from opsctl.agent.session import Call

POLL_S = 0.05
CHUNK_BYTES = 1 << 18
_STATUS_PERIOD_S = 0.5


def tail_start(path: Path, num_rows: int) -> int:
    """The offset where the last `num_rows` rows of the file begin; reads backwards, in constant memory."""
    try:
        with path.open("rb") as file:
            return _rows_back(file, file.seek(0, os.SEEK_END), num_rows)
    except FileNotFoundError:
        return 0


def _rows_back(file: Any, size: int, num_rows: int) -> int:
    if num_rows == 0:
        return size
    position = size
    missing = num_rows + 1  # the newline that ends the row before
    while position > 0:
        start = max(0, position - CHUNK_BYTES)
        file.seek(start)
        data = file.read(position - start)
        if position == size and data.endswith(b"\n"):
            data = data[:-1]
        found = data.count(b"\n")
        if found >= missing - 1:
            return start + _nth_from_end(data, missing - 1)
        missing -= found
        position = start
    return 0


def _nth_from_end(data: bytes, count: int) -> int:
    end = len(data)
    for _ in range(count):
        end = data.rindex(b"\n", 0, end)
    return end + 1


@dataclass
class LogReader:
    """Reads a log on from an offset; the file may not be there yet."""

    path: Path
    offset: int

    def read(self) -> bytes:
        """The next bytes, b"" where there are none yet."""
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.offset)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data


def first_offset(path: Path, request: dict[str, Any]) -> int:
    """Where to begin: at byte `start`, or at the last `rows` rows, or at the begin."""
    if request.get("start") is not None:
        return int(request["start"])
    if request.get("rows") is not None:
        return tail_start(path, int(request["rows"]))
    return 0


def logs(call: Call) -> dict[str, Any]:
    """Streams `log` records {start, end, data in base64}; with `follow` until the run ends."""
    paths = find(call.home, call.request.get("run", ""))
    reader = LogReader(paths.log, first_offset(paths.log, call.request))
    follow = bool(call.request.get("follow"))
    is_over = False
    looked = 0.0
    while True:
        data = reader.read()
        if data:
            piece = base64.b64encode(data).decode()
            call.session.record("log", {"start": reader.offset - len(data), "end": reader.offset, "data": piece})
            continue
        if is_over or not follow:
            return {"end": reader.offset, "run_id": paths.folder.name}
        if time.monotonic() - looked >= _STATUS_PERIOD_S or paths.exit.exists():
            looked = time.monotonic()
            is_over = status_of(paths).state in ENDED  # read once more: the last bytes came before the end
        else:
            time.sleep(POLL_S)
