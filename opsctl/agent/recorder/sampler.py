"""Samples: GPUs as nvidia-smi answers, processes from /proc, free disk; one stream for detection and the file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from opsctl.agent.recorder.findings import disk_low
from opsctl.agent.recorder.gpu_apps import GpuApps
from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.smi import SmiLoop
from opsctl.records.events import GpuSample, ProcessSample, Sample
from opsctl.records.verdict import Finding

DISK_LOW_MIB = 2048.0
_DISK_PERIOD_S = 10.0


def disk_free_mib(folder: Path) -> float | None:
    """What an ordinary user may still write there; None where nobody can say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize / 2**20


class Sampled(Protocol):
    """The processes that are looked at."""

    def pids(self) -> set[int]:
        """Their pids."""

    def sample(self, first: int) -> ProcessSample:
        """States, processor time and memory of the process `first` and of all that belongs to it."""


class Sampler:
    """Emits a sample whenever nvidia-smi answers, and one without GPUs where it has been silent for a while."""

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        members: Sampled,
        *,
        gpus: tuple[int, ...],
        period_s: float,
        on_sample: Callable[[Sample], None],
        on_finding: Callable[[Finding], None],
    ) -> None:
        self._folder = folder
        self._members = members
        self._period_s = period_s
        self._on_sample = on_sample
        self._on_finding = on_finding
        self._last = 0.0
        self._disk_free_mib: float | None = None
        self._disk_seen = float("-inf")
        self._is_disk_low = False
        self.job_pid: int | None = None
        self.smi = SmiLoop(loop, self._emit, gpus=gpus, period_s=period_s)
        self.apps = GpuApps(loop, members.pids, lambda: self.smi.is_answering)
        self.smi.start()
        loop.every(period_s, self._fill)
        loop.every(1.0, self.smi.check)

    def _fill(self) -> None:
        if time.monotonic() - self._last >= 0.9 * self._period_s and not self._is_answer_due():
            self._emit((), self.smi.problem)

    def _is_answer_due(self) -> bool:
        """Whether the answer that belongs to this moment is just a little late."""
        return self.smi.is_answering and time.monotonic() - self._last < 2.5 * self._period_s

    def _emit(self, gpus: tuple[GpuSample, ...], problem: str) -> None:
        if self.job_pid is None:
            return
        self._last = time.monotonic()
        now = round(time.time(), 3)
        self._look_at_disk(now)
        process = self._members.sample(self.job_pid)
        self._on_sample(Sample(now, gpus, process, problem, self._disk_free_mib, self.apps.take()))

    @property
    def helpers(self) -> tuple[SmiLoop | Helper, ...]:
        """What has children; each wants to be told of its own one's end."""
        return self.smi, self.apps.helper

    def end(self) -> None:
        """Kill them without waiting."""
        self.smi.end()
        self.apps.helper.end()

    def _look_at_disk(self, now: float) -> None:
        if time.monotonic() - self._disk_seen < _DISK_PERIOD_S:
            return
        self._disk_seen = time.monotonic()
        self._disk_free_mib = disk_free_mib(self._folder)
        is_low = self._disk_free_mib is not None and self._disk_free_mib < DISK_LOW_MIB
        if is_low and not self._is_disk_low and self._disk_free_mib is not None:
            self._on_finding(disk_low(now, self._disk_free_mib))
        self._is_disk_low = is_low
