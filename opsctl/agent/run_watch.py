"""Verb run-watch: all that is known of a run, first as it stands, then as it comes."""

from __future__ import annotations

import codecs
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from opsctl.agent.files import read_record
from opsctl.agent.home import RunPaths
from opsctl.agent.run_logs import LogReader, first_offset, tail_start
from opsctl.agent.run_queries import ENDED, status_of
from opsctl.agent.run_state import find
from opsctl.agent.session import Call
from opsctl.records.run import RunStatus
from opsctl.records.verdict import Verdict

POLL_S = 0.05
STATUS_PERIOD_S = 1.0
BACKLOG_ROWS = 120
LOG_ROWS = 100


class Rows:
    """The whole rows of a file of JSON lines: the last `backlog`, then what it gains, also where it is replaced."""

    def __init__(self, path: Path, backlog: int) -> None:
        self._path = path
        self._backlog = backlog
        self._inode = 0
        self._offset = 0
        self._last_time = float("-inf")
        self._told_until = float("-inf")  # what an earlier file of this name held, by the rows' own times

    def read(self) -> list[dict[str, Any]]:
        """The rows that came since the last call."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return []
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._offset = 0 if self._inode else tail_start(self._path, self._backlog)
            self._inode, self._told_until = found.st_ino, self._last_time
        if found.st_size == self._offset:
            return []
        return [row for row in self._rows() if self._is_new(row)]

    def _rows(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        rows = []
        for line in data.splitlines():
            with contextlib.suppress(ValueError):  # a job's own file may hold anything
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
        return rows

    def _is_new(self, row: dict[str, Any]) -> bool:
        moment = row.get("time")
        if not isinstance(moment, (int, float)):
            return True
        self._last_time = max(self._last_time, moment)
        return moment > self._told_until


class LogText:
    """The log as text with its byte ranges; a character cut in the middle waits for its rest."""

    def __init__(self, path: Path, offset: int) -> None:
        self._reader = LogReader(path, offset)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._told = offset

    def read(self, *, is_last: bool) -> dict[str, Any] | None:
        """The next piece; None where there is nothing new."""
        data = self._reader.read()
        text = self._decoder.decode(data, final=is_last and not data)
        start, self._told = self._told, self._reader.offset - len(self._decoder.getstate()[0])
        return {"start": start, "end": self._told, "text": text} if self._told > start else None


class Watch:
    """What one watcher has been told so far."""

    def __init__(self, call: Call, paths: RunPaths) -> None:
        self._session = call.session
        self._paths = paths
        self._status: RunStatus | None = None
        self._looked = float("-inf")
        self._verdict_stamp = (0, 0)
        files = {"finding": paths.findings, "metrics": paths.metrics, "sample": paths.telemetry}
        backlog = call.request.get("backlog", BACKLOG_ROWS)
        self._rows = {kind: Rows(path, backlog) for kind, path in files.items()}
        self._log = LogText(paths.log, first_offset(paths.log, {"rows": LOG_ROWS, **call.request}))

    def step(self) -> RunStatus:
        """Tell what is new; returns the status now, so that all of an ended run is told after its end is known."""
        found = self._look()
        for kind, rows in self._rows.items():
            for row in rows.read():
                self._session.record(kind, row)
        while piece := self._log.read(is_last=found.state in ENDED):
            self._session.record("log", piece)
        if found.state not in ("unwatched", "lost"):  # nobody keeps the verdict up to date then
            self._tell_verdict()
        return found

    def _look(self) -> RunStatus:
        is_due = time.monotonic() - self._looked >= STATUS_PERIOD_S or self._paths.exit.exists()
        if self._status is None or is_due:
            self._looked = time.monotonic()
            found = status_of(self._paths)
            if self._status is None or (found.state, found.run) != (self._status.state, self._status.run):
                self._session.record("status", found)
            self._status = found
        return self._status

    def _tell_verdict(self) -> None:
        with contextlib.suppress(FileNotFoundError, ValueError):  # none yet; one cut by a crash of the machine
            found = self._paths.verdict.stat()
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._verdict_stamp:
                self._verdict_stamp = stamp
                self._session.record("verdict", read_record(Verdict, self._paths.verdict))


def watch(call: Call) -> RunStatus:
    """Streams what stands, a `caught_up`, then what comes until the run ends (`once`: no more); returns the status.

    The request's `start` is the byte of the log to begin at, else its last `rows` rows are told; `backlog`
    is how many rows of each other file are.
    """
    paths = find(call.home, call.request.get("run", ""))
    told = Watch(call, paths)
    found = told.step()
    call.session.record("caught_up", {})
    while found.state not in ENDED and not call.request.get("once"):
        time.sleep(POLL_S)
        found = told.step()
    if found.exit:
        call.session.record("exit", found.exit)
    return found
