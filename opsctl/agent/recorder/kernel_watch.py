"""The recorder's ear at the kernel: its log or what a watch brings of it, whose rows those are, and the OOM counter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from opsctl.agent.recorder.kernel import (
    HandedRow,
    HandedRows,
    OomCounter,
    counter_files,
    kernel_rows,
    open_kernel_log,
    sees_host_pids,
)
from opsctl.agent.recorder.loop import READ, Loop
from opsctl.agent.recorder.members import Members
from opsctl.detect.kernel import named_pid

HANDED_PERIOD_S = 0.25
COUNTED_S = 30.0  # a kill that the group counted so long before an end has hardly to do with it
OnRow = Callable[[str, bool | None], None]  # a row, and whether the process that it names is the job's


class KernelWatch:
    """Hands every row on with whose it is; `reads` says whether this process may read the log by itself."""

    def __init__(self, loop: Loop, folder: Path, members: Members, on_row: OnRow) -> None:
        self._members = members
        self._on_row = on_row
        self._counter = OomCounter(counter_files(os.getpid()))
        descriptor = open_kernel_log()
        self.reads = descriptor is not None
        self.job_pid: int | None = None
        if descriptor is not None:
            loop.watch(descriptor, READ, lambda _: self._heard(kernel_rows(descriptor)))
        else:
            handed = HandedRows(folder)
            loop.every(HANDED_PERIOD_S, lambda: self._handed(handed.read()))

    def begin(self) -> None:
        """An attempt begins: what was counted before is none of its business."""
        self._counter.begin()

    def count(self, now: float) -> None:
        """Look at the group's counter; to be called every second or so."""
        self._counter.look(now)

    def oom_killed(self, now: float) -> bool | None:
        """Whether the control group counted a kill for memory not long ago; None where it has no counter."""
        self._counter.look(now)
        return self._counter.rose_since(now - COUNTED_S)

    def _heard(self, rows: Iterable[str]) -> None:
        for text in rows:
            pid = named_pid(text) if sees_host_pids() else None
            self._on_row(text, None if pid is None else self._is_own(pid))

    def _handed(self, rows: Iterable[HandedRow]) -> None:
        for row in rows:
            self._on_row(row.text, row.is_own if row.pid is None else self._is_own(row.pid))

    def _is_own(self, pid: int) -> bool | None:
        """Whether a process is the run's; None for one that no sample has seen."""
        return True if pid == self.job_pid else self._members.carries(pid)
