"""Everything a watcher has learned: one object that holds the state of every fold."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.detect.compiling import Compiling
from opsctl.detect.context import Context, Opinion
from opsctl.detect.exceptions import Exceptions
from opsctl.detect.gpus import Gpus
from opsctl.detect.kernel import Kernel
from opsctl.detect.loss import Losses
from opsctl.detect.processes import Processes
from opsctl.detect.progress import Progress
from opsctl.detect.steps import Shape
from opsctl.detect.words import Words
from opsctl.records.events import End


@dataclass
class State:
    """The folds' states; changed in place by `watcher.observe`. Bounded: it does not grow with the log."""

    context: Context
    started: float
    now: float
    progress: Progress
    gpus: Gpus
    kernel: Kernel
    compiling: Compiling
    losses: Losses = field(default_factory=Losses)
    words: Words = field(default_factory=Words)
    exceptions: Exceptions = field(default_factory=Exceptions)
    processes: Processes = field(default_factory=Processes)
    end: End | None = None
    disk_free_mib: float | None = None
    num_rows_seen: int = 0  # rows of output, of any kind
    last_rows: list[str] = field(default_factory=list)
    shapes: dict[str, tuple[bool, Shape | None]] = field(default_factory=dict)  # by row with digits as 0
    told: dict[str, int] = field(default_factory=dict)  # findings given so far, by what they say
    num_events: int = 0
    opinion: tuple[int, Opinion] | None = None  # the newest, and after how many events it was formed
    headline: tuple[str, str] = ("", "")
    headline_since: float = 0.0


def initial(context: Context, time: float) -> State:
    """The state of a job watched from `time` on."""
    line = time - (context.seen_line_s or 0.0)
    step = time - (context.seen_step_s if context.seen_step_s is not None else context.seen_line_s or 0.0)
    progress = Progress(context, time, line, step, line)
    if context.phase:
        progress.enter(context.phase, line)
    return State(context, time, time, progress, Gpus(context), Kernel(context), Compiling(context))
