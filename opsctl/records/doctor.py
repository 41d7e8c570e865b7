"""Records of `opsctl doctor`: the facts of a target, and checks of them. Frozen, standard library only, no I/O.

A text named `problem` is "" where all is well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.records.events import GpuSample


@dataclass(frozen=True)
class Check:
    """One question to a target; `ok` is None where it could not be told, and `todo` is what helps."""

    name: str
    ok: bool | None
    found: str
    todo: str = ""


@dataclass(frozen=True)
class PythonFacts:
    """The interpreter that the set is built with; `include` is "" where Python.h is not there."""

    version: str = ""
    executable: str = ""
    include: str = ""
    problem: str = ""  # why no interpreter fits the set
    has_venv: bool = False  # of the interpreter that runs the agent


@dataclass(frozen=True)
class ToolFacts:
    """One program: what it said of itself, or why it does not work."""

    path: str = ""
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class TerminalFacts:
    """Pseudo-terminals, as tmux and the recorder need them."""

    problem: str = ""
    used: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class LogindFacts:
    """Whether a logout ends what a user left running."""

    init: str = ""  # the name of PID 1
    kills: bool | None = None  # KillUserProcesses; None = cannot be told
    lingers: bool = False
    in_session: bool = False  # we run in a login session's scope, which is what it would end
    user: str = ""


@dataclass(frozen=True)
class GpuFacts:
    """What nvidia-smi, the device files and the driver's library say."""

    gpus: tuple[GpuSample, ...] = ()
    problem: str = ""
    answer_s: float | None = None  # None = there is no nvidia-smi
    holders: dict[str, str] = field(default_factory=dict)  # GPU uuid -> the run of ours that leases it
    kernel_driver: str = ""
    library: str = ""  # version of libcuda
    nodes: dict[str, str] = field(default_factory=dict)  # device file -> why it does not open, "" where it does


@dataclass(frozen=True)
class TargetFacts:
    """All that a doctor asks a target, at one moment."""

    time: float
    user: str
    home: str
    home_mode: int
    disk_free_mib: float
    shm_mib: float | None  # None = no /dev/shm
    flock_problem: str
    locale_problem: str
    python: PythonFacts
    tmux: ToolFacts
    compiler: ToolFacts
    terminal: TerminalFacts
    logind: LogindFacts
    gpu: GpuFacts
    hidepid: str = ""  # what /proc is mounted with where it hides other users' processes, "" where it does not
    kernel_log_problem: str = ""


@dataclass(frozen=True)
class CompileFacts:
    """In which state torch compiles in an environment."""

    env_id: str
    variables: dict[str, str] = field(default_factory=dict)  # of those asked for, what the target's environment sets
    error: str = ""  # why torch gives no answer
    torch: str = ""
    tracing: TracingFacts | None = None
    hidden: HiddenFacts | None = None
    caches: dict[str, bool] = field(default_factory=dict)
    config: tuple[str, ...] = ()  # settings of torch that silence it


@dataclass(frozen=True)
class TracingFacts:
    """Whether torch believes that FX traces: at first, and after masks were made."""

    before: bool = False
    after_eager: bool = False
    after_compiled: bool = False
    problem: str = ""


@dataclass(frozen=True)
class AskedFacts:
    """Who asked torch to compile, as file:line."""

    callers: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class HiddenFacts:
    """What is compiled without the user's word."""

    transformers: str = ""  # its version, "" where it is not there
    callback: bool = False  # something has hooked dynamo already
    default: AskedFacts = field(default_factory=AskedFacts)  # by a model as it comes
    flex: AskedFacts = field(default_factory=AskedFacts)  # by one with attn_implementation="flex_attention"
