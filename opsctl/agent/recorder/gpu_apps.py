"""Who else works on the GPUs: nvidia-smi's list of processes, asked for now and then, told apart by the run's own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.loop import Loop
from opsctl.detect import smi_text
from opsctl.records.events import GpuProcess

FIRST_S, PERIOD_S = 5.0, 30.0
LIMIT_S = 10.0
ARGV = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv")


def told_apart(listed: Collection[GpuProcess], own: Collection[int]) -> tuple[GpuProcess, ...] | None:
    """The list with who is the run's; None where its pids are not those of this pid namespace, as in a container."""
    if not any(row.pid in own for row in listed):
        return None
    here = [row for row in listed if row.pid in own or Path(f"/proc/{row.pid}").exists()]
    return tuple(replace(row, is_own=row.pid in own) for row in here)


class GpuApps:
    """Keeps the newest list until it is taken."""

    def __init__(self, loop: Loop, own: Callable[[], Collection[int]], is_answering: Callable[[], bool]) -> None:
        self._own = own
        self._is_answering = is_answering
        self._newest: tuple[GpuProcess, ...] | None = None
        self.helper = Helper(loop, limit_s=LIMIT_S)
        loop.later(FIRST_S, self.ask)
        loop.every(PERIOD_S, self.ask)

    def ask(self) -> None:
        """Ask, if the driver answers at all: a sick one must not get a second process to keep."""
        if self._is_answering():
            self.helper.start(ARGV, self._told)

    def _told(self, text: str) -> None:
        listed = smi_text.parse(text).processes
        self._newest = None if listed is None else told_apart(listed, self._own())

    def take(self) -> tuple[GpuProcess, ...] | None:
        """The list, if a new one came since the last call."""
        newest, self._newest = self._newest, None
        return newest
