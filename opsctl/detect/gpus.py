"""The fold over GPU samples: which GPUs are the job's; who spins, idles, is lost or is shared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from opsctl.detect import memory
from opsctl.detect.context import Context
from opsctl.detect.gpu import SPIN_SAMPLES, Gpu
from opsctl.records.events import GpuProcess, GpuSample, Sample

MISSING_POLLS = 2
FOREIGN_MIB = 500.0
FLAT_S, FLAT_SAMPLES = 5.0, 4  # by chance, memory of varying batches stays the same for a moment
NEIGHBOUR_PIDS = 512  # ranks and workers of one job are born close together
_PYTHONIC = re.compile(r"(?i)python|pt_|torch|train|ray::|deepspeed|accelerate")


@dataclass
class Gpus:
    """State of the fold: the job's own GPUs by index, and what nvidia-smi last said instead of numbers."""

    context: Context
    gpus: dict[int, Gpu] = field(default_factory=dict)
    problem: str = ""
    problem_since: float | None = None
    num_polls: int = 0
    rows: int | None = None  # of progress, at the newest numbers
    last_good: float | None = None
    processes: tuple[GpuProcess, ...] | None = None

    def observe(self, sample: Sample, *, in_train: bool, rows: int = 0) -> None:
        """Fold one sample in: numbers, or the sentence in their place; `rows` of progress were seen so far."""
        self.num_polls += 1
        if sample.gpu_processes is not None:
            self.processes = sample.gpu_processes
        if sample.gpu_problem:
            self.problem = sample.gpu_problem
            self.problem_since = sample.time if self.problem_since is None else self.problem_since
        elif sample.gpus:
            self.problem, self.problem_since = "", None
        if sample.gpus:
            self._numbers(sample, in_train, self.rows is not None and rows > self.rows)
            self.rows = rows

    def _numbers(self, sample: Sample, in_train: bool, steps_come: bool) -> None:
        self.last_good = sample.time
        for gpu in sample.gpus:
            if self._is_own(gpu):
                self.gpus.setdefault(gpu.index, Gpu(gpu.index)).observe(
                    gpu, sample.time, in_train=in_train, steps_come=steps_come
                )
        present = {gpu.index for gpu in sample.gpus}
        for index, known in self.gpus.items():
            if index not in present:
                known.missing += 1

    def _is_own(self, gpu: GpuSample) -> bool:
        context = self.context
        if context.gpu_uuids and gpu.uuid:
            return gpu.uuid in context.gpu_uuids
        if context.gpu_bus_ids and gpu.bus_id:
            return any(same_bus(gpu.bus_id, own) for own in context.gpu_bus_ids)
        return not context.gpus or gpu.index in context.gpus

    def settle(self, span_s: float = FLAT_S, at_least: int = FLAT_SAMPLES) -> None:
        """Note for each GPU that its memory has once been flat under load for a while: the baseline of this run."""
        for gpu in self.gpus.values():
            if not gpu.was_flat and not gpu.is_idle(at_least):
                points = gpu.newest_for(span_s, at_least)
                used = [point.used for point in points if point.used is not None]
                gpu.was_flat = len(used) == len(points) >= at_least and memory.is_flat(used)

    # --- what is known ---------------------------------------------------------------------------

    def lost(self) -> str:
        """Which of the job's GPUs is lost, in words; "" for none."""
        for gpu in self.gpus.values():
            if gpu.problem:
                return f"GPU {gpu.index}: {gpu.problem}"
            if gpu.missing >= MISSING_POLLS:
                return f"GPU {gpu.index} is missing from nvidia-smi's list"
        return self._lost_sentence()

    def _lost_sentence(self) -> str:
        """What nvidia-smi says in place of numbers about a lost GPU that may be the job's; "" for nothing."""
        said = any(words in self.problem for words in ("device handle", "is lost", "requires reset"))
        own, named = {bus_key(bus) for bus in self.context.gpu_bus_ids}, bus_key(self.problem)
        return self.problem if said and not (own and named and named not in own) else ""

    def spinning(self, number: int = SPIN_SAMPLES) -> list[Gpu]:
        """The GPUs that only wait at full utilisation, as so many samples or more show."""
        return [gpu for gpu in self.gpus.values() if gpu.is_spinning(number)]

    def idle(self, number: int = SPIN_SAMPLES) -> list[Gpu]:
        """The GPUs without work in their newest samples."""
        return [gpu for gpu in self.gpus.values() if gpu.is_idle(number)]

    def utilization_pct(self) -> float | None:
        """Mean utilisation of the newest minutes of training over all GPUs; None = unknown."""
        known = [util for gpu in self.gpus.values() for util in gpu.utilizations()]
        return sum(known) / len(known) if len(known) >= 6 else None

    def held_mib(self) -> float:
        """The most memory that a GPU without work, and without another process in the list, still holds."""
        if self.processes:
            return 0.0
        return max((gpu.used_mib for gpu in self.idle(1)), default=0.0)

    def foreigners(self) -> tuple[GpuProcess, ...]:
        """Processes on the job's GPUs that are not the job's; which GPUs those are a lease or an own process tells."""
        rows = [row for row in self.processes or () if row.used_mib is None or row.used_mib >= FOREIGN_MIB]
        own = [row for row in rows if self._is_jobs(row)]
        shared = {row.gpu for row in own} | set(self.context.gpu_uuids)
        return tuple(row for row in rows if row.gpu in shared and row not in own)

    def bus_ids(self) -> tuple[str, ...]:
        """The addresses of the job's GPUs, where somebody said which GPUs are the job's."""
        if not self.context.gpus and not self.context.gpu_uuids:
            return ()
        return tuple(gpu.bus_id for gpu in self.gpus.values() if gpu.bus_id)

    def _is_jobs(self, row: GpuProcess) -> bool:
        pid = self.context.pid
        if row.is_own is not None:
            return row.is_own
        if row.pid == pid:
            return True
        return is_pythonic(row.name) and (pid is None or abs(row.pid - pid) <= NEIGHBOUR_PIDS)


def is_pythonic(name: str) -> bool:
    """Whether a process of this name may be a training process."""
    return bool(_PYTHONIC.search(name))


def same_bus(one: str, other: str) -> bool:
    """Whether two spellings of a PCI address name one device: 00000000:B3:00.0 is 0000:b3:00.

    >>> same_bus("00000000:B3:00.0", "0000:b3:00")
    True
    """
    return bus_key(one) == bus_key(other) != ""


def bus_key(text: str) -> str:
    """The domain, bus and device of a PCI address, in one spelling."""
    match = re.search(r"(?i)([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})", text)
    return f"{int(match.group(1), 16):x}:{match.group(2)}:{match.group(3)}".lower() if match else ""
