"""A run: what was asked for, what runs, how it ended. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.records.call import SCHEMA
from opsctl.records.events import Sample
from opsctl.records.process import ProcessIdentity
from opsctl.records.verdict import Verdict


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
    env_place: str = ""  # the path by which the job sees it: the same for all builds of one set
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
    baseline: str = ""  # name of a good run's figures to compare with
    expect_warm: bool = False  # a prewarm filled its compile cache: nothing should be missing there
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
    reads_kernel: bool = True  # whether its recorder sees the kernel's log by itself
    pid_namespace: str = ""  # the recorder's, where a watch must tell whose processes the host's kernel names
    schema: int = SCHEMA


@dataclass(frozen=True)
class StopRequest:
    """stop.json: who asked that a run stops, and how long its job may take for that."""

    operator: str
    time: float
    grace_s: float | None = None  # None = the run's own


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
    missing_log_bytes: int = 0  # output that the log lacks, since its disk was full
    schema: int = SCHEMA


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
