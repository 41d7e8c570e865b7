"""Frozen records that cross the wire or the disk, and their JSON form.

Shipped inside the agent: standard library only, Python 3.10 and newer. No I/O here.
Times are seconds since the epoch (UTC), sizes say their unit, an unknown number is None.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any

from opsctl.call_records import PROTOCOL, SCHEMA, Outcome, from_json, to_json

__all__ = ["PROTOCOL", "SCHEMA", "Outcome", "from_json", "to_json"]  # what every call needs has a module of its own


# --- processes and endings -----------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, told apart from any other that had or will have its pid.

    `boot_id` and `init_start` (start of PID 1, clock ticks after boot) together survive a
    container restart, which keeps the boot id and reuses pids; `start` is the process's own.
    """

    boot_id: str
    init_start: int
    pid: int
    start: int


@dataclass(frozen=True)
class Attempt:
    """One start of a run's job and how it ended; exactly one of code and signal is set."""

    number: int
    started: float
    ended: float
    exit_code: int | None
    signal: int | None
    last_step: int | None = None
    cause: str = ""
    stop_requested: bool = False
    restart: bool = False  # the recorder starts the job again after this attempt


@dataclass(frozen=True)
class ExitRecord:
    """exit.json: written once, atomically, when the run is over and no process of it is left."""

    run_id: str
    attempts: tuple[Attempt, ...]
    verdict: Verdict
    log_bytes: int
    schema: int = SCHEMA


# --- what a run is -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restart:
    """When the recorder starts a job again: at most `max` times, waiting `backoff_s`."""

    max: int = 0
    backoff_s: float = 10.0


@dataclass(frozen=True)
class Notify:
    """Whom the recorder tells when the verdict changes."""

    command: tuple[str, ...] = ()
    webhook: str = ""
    heartbeat: str = ""


@dataclass(frozen=True)
class RunSpec:
    """What is asked for when a run starts; no secret is ever in it."""

    name: str
    argv: tuple[str, ...]
    kind: str = "train"  # train, rebuild, prewarm, or any long step
    environment: dict[str, str] = field(default_factory=dict)
    secret_names: tuple[str, ...] = ()  # environment names whose values come over a FIFO
    env: str = ""  # resolved folder of the environment, "" for none
    code: str = ""  # resolved folder of the deployed sources, "" for none
    code_origin: str = ""  # commit, or "<commit> + uncommitted changes"
    cache_dir: str = ""
    gpus: tuple[int, ...] = ()  # nvidia-smi indices; () = none asked for
    share: bool = False
    stop_grace_s: float = 30.0
    sample_period_s: float = 1.0
    restart: Restart = field(default_factory=Restart)
    notify: Notify = field(default_factory=Notify)
    expect_compiled: bool | None = None
    operator: str = ""  # user@host who asked
    why: str = ""
    notes: tuple[str, ...] = ()  # said to the user at start: allow-drift, dirty tree, cold cache


@dataclass(frozen=True)
class RunRecord:
    """run.json: what runs, since when, and which processes are it."""

    run_id: str
    spec: RunSpec
    created: float
    socket: str  # tmux socket path
    session: str  # tmux session name
    recorder: ProcessIdentity | None = None
    job: ProcessIdentity | None = None
    gpu_uuids: tuple[str, ...] = ()
    folder: str = ""  # the run's folder, which is the job's working directory
    schema: int = SCHEMA


@dataclass(frozen=True)
class StopRequest:
    """stop.json: who asked that a run stops, and how long its job may take for that."""

    operator: str
    time: float
    grace_s: float | None = None  # None = the run's own


@dataclass(frozen=True)
class RunStatus:
    """A run as its files and /proc show it now.

    `state` is starting, running, over, unwatched (the recorder died, the job lives) or lost (the
    recorder died or the machine restarted, and nobody saw the end); `message` explains the last two.
    """

    run: RunRecord
    state: str
    verdict: Verdict
    message: str = ""
    exit: ExitRecord | None = None
    log_bytes: int = 0
    last_output: float | None = None  # when the job last wrote
    sample: Sample | None = None  # the newest


# --- detection: what goes in -----------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One piece of text with the time it was seen and its byte range in its file.

    `source` is log, kernel or metrics. `end` of "" text may equal `start`. `is_redraw` marks a
    progress-bar row that ended in a carriage return; `is_partial` a row not ended yet.
    """

    time: float
    text: str
    start: int = 0
    end: int = 0
    source: str = "log"
    is_redraw: bool = False
    is_partial: bool = False


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


Event = typing.Union[Line, Sample, Tick, End]


# --- detection: what comes out ---------------------------------------------------------------------

VERDICTS = (
    "starting",
    "healthy",
    "degraded",
    "eager_fallback",
    "hung",
    "crashed",
    "finished",
    "stopped",
    "unknown",
)


@dataclass(frozen=True)
class Finding:
    """One thing noticed, with its evidence; `cause` is a word of the causes table."""

    time: float
    cause: str
    severity: str  # info, warning, error, fatal
    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    rank: int | None = None
    where: str = ""  # file:line of the root exception
    start: int | None = None  # byte range in the log
    end: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What the findings amount to, since when, and why."""

    verdict: str
    cause: str = "ok"
    since: float = 0.0
    confidence: float = 1.0
    evidence: tuple[str, ...] = ()
    advice: str = ""
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    phase: str = ""


# --- environments and caches -------------------------------------------------------------------------


@dataclass(frozen=True)
class EnvRecord:
    """env.json: what an environment was built from, and what its proof saw."""

    name: str  # the set: cpu, cu130, ...
    fingerprint: str
    build: str
    created: float
    python: str
    platform: str
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version
    proof: dict[str, str] = field(default_factory=dict)  # what was imported, what torch said
    schema: int = SCHEMA


@dataclass(frozen=True)
class SnapshotRecord:
    """<id>.json beside an archive: what it holds and where it fits."""

    snapshot_id: str
    created: float
    key: dict[str, str]  # what torch's own cache keys separate
    num_files: int
    size_mib: float  # unpacked
    archive_sha256: str
    files: dict[str, str] = field(default_factory=dict)  # relative path -> sha256
    warmed: dict[str, Any] = field(default_factory=dict)  # recipe, functions, counters of the prewarm
    schema: int = SCHEMA


@dataclass(frozen=True)
class LockOwner:
    """Who holds a lock, written inside it."""

    operator: str
    process: ProcessIdentity
    since: float
    why: str
