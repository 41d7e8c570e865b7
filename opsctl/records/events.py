"""What detection is fed: lines, samples, ticks and the end. No I/O here."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """One piece of text with the time it was seen and its byte range in its file.

    `source` is log, kernel or metrics. `end` of "" text may equal `start`. `is_redraw` marks a
    progress-bar row that ended in a carriage return; `is_partial` a row not ended yet. `is_own` is for kernel rows
    alone: whether the process that it names is the job's, None where nobody can say. A tuple, since a log makes a
    million of them.
    """

    time: float
    text: str
    start: int = 0
    end: int = 0
    source: str = "log"
    is_redraw: bool = False
    is_partial: bool = False
    is_own: bool | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment, as nvidia-smi said it; None is unknown, never zero."""

    index: int
    uuid: str = ""
    name: str = ""
    utilization_pct: float | None = None
    used_mib: float | None = None
    total_mib: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    bus_id: str = ""
    clock_mhz: float | None = None
    throttle: int | None = None  # NVML's bit mask of reasons for lower clocks
    problem: str = ""  # what nvidia-smi said instead of numbers: GPU is lost, Unknown Error
    maintenance: str = ""  # what the hardware asks for: row remapping is pending


@dataclass(frozen=True)
class GpuProcess:
    """One row of nvidia-smi's list of processes; `gpu` is the index, uuid or bus id it gave."""

    pid: int
    name: str = ""
    used_mib: float | None = None
    gpu: str = ""
    is_own: bool | None = None  # whether it is the job's; None where nobody could tell


@dataclass(frozen=True)
class ProcessSample:
    """The run's process tree at one moment, from /proc."""

    num_processes: int
    states: str = ""  # one letter a process, the job first: R S D T Z
    cpu_s: float = 0.0  # user and system time of the tree so far
    rss_mib: float = 0.0


@dataclass(frozen=True)
class Sample:
    """GPUs and processes at one moment; `gpu_problem` says why `gpus` is empty or partial."""

    time: float
    gpus: tuple[GpuSample, ...] = ()
    process: ProcessSample | None = None
    gpu_problem: str = ""
    disk_free_mib: float | None = None
    gpu_processes: tuple[GpuProcess, ...] | None = None  # None = not asked for


@dataclass(frozen=True)
class Tick:
    """Time passed and nothing else happened."""

    time: float


@dataclass(frozen=True)
class End:
    """The job ended."""

    time: float
    exit_code: int | None = None
    signal: int | None = None
    stop_requested: bool = False
    oom_killed: bool | None = None  # a cgroup record said so; None = unreadable
    checkpoint: str = ""  # what the job's own result names; "" = nothing
    is_tail_unseen: bool = False  # the terminal closed with the job: what it printed last was not seen


Event = typing.Union[Line, Sample, Tick, End]
