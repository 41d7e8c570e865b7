"""The fold over the job's process tree: stopped processes, and processor time as a sign of life."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.records.events import ProcessSample

STOPPED_S = 2.0  # a moment in state T happens (debuggers, job control); two seconds are no accident
BUSY_CORES = 0.05


@dataclass
class Processes:
    """State of the fold; changed in place. Times are of samples, None until one came."""

    time: float | None = None
    cpu_s: float = 0.0
    busy_cores: float | None = None
    rss_mib: float = 0.0
    first_rss_mib: float = 0.0
    states: str = ""
    stopped_since: float | None = None
    waiting_since: float | None = None  # all of it in uninterruptible sleep (D)
    num_processes: int = 0

    def observe(self, sample: ProcessSample, time: float) -> bool:
        """Fold one sample in; says whether processor time moved."""
        moved = self._measure(sample, time)
        self.states, self.num_processes = sample.states, sample.num_processes
        self.stopped_since = self._since(self.stopped_since, _is_stopped(sample.states), time)
        self.waiting_since = self._since(self.waiting_since, "D" in sample.states and not moved, time)
        self.first_rss_mib = self.first_rss_mib or sample.rss_mib
        self.rss_mib, self.time = sample.rss_mib, time
        return moved

    def _measure(self, sample: ProcessSample, time: float) -> bool:
        if self.time is None or time <= self.time:
            self.cpu_s = sample.cpu_s
            return True
        spent = max(sample.cpu_s - self.cpu_s, 0.0)  # a child that left takes its time along
        self.cpu_s = sample.cpu_s
        cores = spent / (time - self.time)
        self.busy_cores = cores if self.busy_cores is None else 0.7 * self.busy_cores + 0.3 * cores
        return cores >= BUSY_CORES

    @staticmethod
    def _since(since: float | None, holds: bool, time: float) -> float | None:
        return (time if since is None else since) if holds else None

    def is_stopped(self, now: float) -> bool:
        """Whether the job stands still by a signal (state T), for longer than a moment."""
        return self.stopped_since is not None and now - self.stopped_since >= STOPPED_S


def _is_stopped(states: str) -> bool:
    """The job itself in state T, or every process of it that is no zombie; t, a debugger's look, is none."""
    return states[:1] == "T" or set(states.replace("Z", "")) == {"T"}
