"""Long jobs of the agent itself: progress while they work, result.json or error.json when they end.

They run as the job of a run; their working directory is the run's.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from opsctl.agent.files import write_record
from opsctl.agent.main import as_opsctl_error

REQUEST = "request.json"
RESULT = "result.json"
ERROR = "error.json"
METRICS = "metrics.jsonl"
# a verb that looks whether a lock is free holds it for a moment; a job must not give up by that
LOCK_WAIT_S = 3.0


class Phases(Protocol):
    """Hears how far a step has come, whoever does it."""

    def phase(self, name: str, text: str = "", *, done: float | None = None, total: float | None = None) -> None:
        """The step is in phase `name`; `done` and `total` share one unit."""


class Progress:
    """Tells how far a job has come: a row in metrics.jsonl for programs, one in the log for people."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / METRICS).open("a", buffering=1)
        self._last = ""

    def phase(self, name: str, text: str = "", *, done: float | None = None, total: float | None = None) -> None:
        """The job is in phase `name`; `done` and `total` share one unit."""
        row = {"time": round(time.time(), 3), "phase": name, "text": text, "done": done, "total": total}
        self._file.write(json.dumps(row) + "\n")
        shown = f"{name}: {text}" if text else name
        if shown != self._last:
            self.log(shown)
        self._last = shown

    def close(self) -> None:
        """Nothing more will be told."""
        self._file.close()

    def log(self, text: str) -> None:
        """Write a row into the run's log."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def request(folder: Path) -> Any:
    """What the start of the job in `folder` asks of it, beside the words of its command."""
    return json.loads((folder / REQUEST).read_text())


def run(job: Callable[[Progress], Any], *, folder: Path) -> int:
    """Run a job to its end, keep what it came to, and return the exit status."""
    progress = Progress(folder)
    for name in (RESULT, ERROR):
        (folder / name).unlink(missing_ok=True)
    try:
        write_record(folder / RESULT, job(progress))
    except Exception as caught:  # noqa: BLE001 - the boundary: every failure is kept for the client
        error = as_opsctl_error(caught)
        progress.log(f"error: {error.message}")
        with contextlib.suppress(OSError):  # a full disk: the log, and the exit status, still tell
            write_record(folder / ERROR, {"kind": type(error).__name__, "message": error.message, "hint": error.hint})
        return error.exit_code
    return 0
