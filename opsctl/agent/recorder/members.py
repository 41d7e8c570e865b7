"""The run's processes, found anew at every sample without reading every environment each time."""

from __future__ import annotations

import collections

from opsctl.agent.processes import environ, pids, run_entry, sample
from opsctl.records.events import ProcessSample

MAX_LEFT = 4096


class Members:
    """Remembers which pids carry the run's id; a pid is read once, as long as it stays."""

    def __init__(self, run_id: str) -> None:
        self._entry = run_entry(run_id)
        self._carries: dict[int, bool] = {}
        self._left: collections.deque[int] = collections.deque(maxlen=MAX_LEFT)  # the run's own that are gone

    def pids(self) -> set[int]:
        """The run's processes as they were at the last sample."""
        return {pid for pid, carries in self._carries.items() if carries}

    def carries(self, pid: int) -> bool | None:
        """Whether a process is, or newly was, the run's; None for one that no sample has seen."""
        return self._carries.get(pid, True if pid in self._left else None)

    def sample(self, first: int) -> ProcessSample:
        """States, CPU time and memory of the run now, the process `first` in front."""
        seen = {pid: self._carries[pid] if pid in self._carries else self._entry in environ(pid) for pid in pids()}
        self._left.extend(pid for pid, carries in self._carries.items() if carries and pid not in seen)
        self._carries = seen
        others = tuple(pid for pid, carries in seen.items() if carries and pid != first)
        return sample((first, *others))
