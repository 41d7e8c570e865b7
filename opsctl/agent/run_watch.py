"""Verb run-watch: a run's status, verdict, findings, samples, metrics and log rows, as they come."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from opsctl.agent.files import read_record
from opsctl.agent.home import RunPaths
from opsctl.agent.run_logs import LogReader, first_offset
from opsctl.agent.run_queries import ENDED, status_of
from opsctl.agent.run_state import find
from opsctl.agent.session import Call
from opsctl.records import RunStatus, Verdict

POLL_S = 0.05
STATUS_PERIOD_S = 1.0


class Rows:
    """The whole rows that a file of JSON lines gains; one that is replaced is read on behind `last_time`."""

    def __init__(self, path: Path, *, skip: int = 0) -> None:
        self._path = path
        self._skip = skip
        self._inode = 0
        self._offset = 0
        self._last_time = float("-inf")

    def read(self) -> list[dict[str, Any]]:
        """The rows that came since the last call."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return []
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode, self._offset = found.st_ino, 0
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
        if isinstance(moment, (int, float)):
            if moment < self._last_time:
                return False
            self._last_time = moment
        if self._skip > 0:
            self._skip -= 1
            return False
        return True


class Watch:
    """What one watcher has been told so far."""

    def __init__(self, call: Call, paths: RunPaths) -> None:
        request = call.request
        self._session = call.session
        self._paths = paths
        self._status: RunStatus | None = None
        self._looked = float("-inf")
        self._verdict_stamp = (0, 0)
        self._rows = {
            "finding": Rows(paths.findings, skip=request.get("num_findings", 0)),
            "sample": Rows(paths.telemetry, skip=request.get("num_samples", 0)),
            "metrics": Rows(paths.metrics, skip=request.get("num_metrics", 0)),
        }
        self._log = LogReader(paths.log, first_offset(paths.log, {"rows": 20, **request}))
        self._pending = b""

    def step(self) -> RunStatus:
        """Tell what is new; returns the status now."""
        found = self._look()
        self._tell_verdict()
        for kind, rows in self._rows.items():
            for row in rows.read():
                self._session.record(kind, row)
        self._tell_log(is_last=found.state in ENDED)
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

    def _tell_log(self, *, is_last: bool) -> None:
        while True:
            start = self._log.offset - len(self._pending)
            data = self._log.read()
            whole = self._pending + data
            cut = len(whole) if is_last and not data else whole.rfind(b"\n") + 1
            self._pending = whole[cut:]
            if cut:
                text = whole[:cut].decode(errors="replace")
                self._session.record("log", {"start": start, "end": start + cut, "text": text})
            if not data:
                return


def watch(call: Call) -> RunStatus:
    """Streams records until the run ends (`once`: what stands now); the result is the last status."""
    paths = find(call.home, call.request.get("run", ""))
    told = Watch(call, paths)
    while True:
        found = told.step()
        if found.state in ENDED or call.request.get("once"):
            return found
        time.sleep(POLL_S)
