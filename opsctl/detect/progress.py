"""The fold over progress: steps, phases, the run's own pace, and how long silence may last.

Time comes with the events; nothing here looks at a clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from opsctl.detect.bars import Bars
from opsctl.detect.context import Context
from opsctl.detect.pace import WARMUP_ROWS, Pace
from opsctl.detect.silence import Silence
from opsctl.detect.steps import StepRow

STALL_FACTOR, STALL_EXTRA_S = 3.0, 5.0
HANG_FACTOR, HANG_FLOOR_S = 10.0, 60.0
PAUSE_FACTOR = 1.5  # a pause that the run came back from once may last a little longer the next time
EARLY_STALL_S, EARLY_HANG_S = 60.0, 600.0  # while nobody knows yet how far apart rows are
FEW_INTERVALS, FEW_HANG_S = 5, 180.0
CHATTER_FACTOR, CHATTER_FLOOR_S = 30.0, 600.0  # steps are absent, yet the log goes on
PHASE_FLOOR_S = {"eval": 600.0, "checkpoint": 600.0, "prepare": 1800.0, "compile": 1800.0, "starting": 1800.0}
DUE_EVERY = 8  # rows: sorting for each one would cost too much
AT_SPEED = 1.2
SEEN_SHARE = 0.8
USUAL_ROWS, ONCE_FACTOR = 5, 4.0
OTHER_FLOOR_S = 600.0
TRAINING = frozenset({"", "train"})  # every other phase has no steps
_PHASE_NAMES = {
    "before_first_step": "starting",
    "saving": "checkpoint",
    "save": "checkpoint",
    "ckpt": "checkpoint",
    "validation": "eval",
    "evaluation": "eval",
    "warmup": "compile",
    "data": "prepare",
    "training": "train",
}


@dataclass
class Progress:
    """State of the fold; changed in place. `num_rows` counts rows that brought a step."""

    context: Context
    started: float
    last_line: float
    last_step: float
    last_activity: float
    phase: str = ""
    phase_since: float = 0.0
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    num_rows: int = 0
    steps_done: int = 0  # by how much the step number rose while watched
    is_epoch: bool = False
    has_output: bool = False
    host_memory: list[float] = field(default_factory=list)  # the first and the newest figure in the log
    is_done: bool = False
    done_at: float = 0.0
    has_metrics: bool = False
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    pace: Pace = field(default_factory=Pace)  # seconds a step
    token_pace: Pace = field(default_factory=Pace)  # seconds a token
    data_times: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    paced_step: int | None = None
    bars: Bars = field(default_factory=Bars)
    longest: dict[str, float] = field(default_factory=dict)
    longest_pause: float = 0.0  # between two rows of training
    due: tuple[int, float] = (-1, 0.0)  # after how many rows `due_s` was found, and what it was

    # --- what comes in ---------------------------------------------------------------------------

    def hear(self, time: float) -> None:
        """Any row of output."""
        self.has_output = True
        if time > self.last_line:  # not max(): a log has millions of rows
            self.last_line = time

    def act(self, time: float) -> None:
        """A sign of life other than a step: processor time in a phase without steps."""
        self.last_activity = max(self.last_activity, time)

    def enter(self, phase: str, time: float) -> None:
        """A phase begins: eval, checkpoint, prepare, compile or train."""
        phase = _PHASE_NAMES.get(phase, phase)
        if phase != self.phase:
            if self.phase:
                spent = time - self.phase_since
                self.longest[self.phase] = max(spent, self.longest.get(self.phase, 0.0))
            self.phase, self.phase_since = phase, time
        self.act(time)

    def settle(self, time: float) -> None:
        """What was read so far was written at unknown times: measure from here on."""
        self.paced_step = self.step
        self.last_step, self.last_line = max(self.last_step, time), max(self.last_line, time)

    def finish(self, time: float) -> None:
        """The log says that the work is done."""
        self.is_done, self.done_at = True, time
        if self.has_stepped and not self.has_metrics:
            self.enter("done", time)

    def observe(self, row: StepRow, time: float) -> bool:
        """Fold one progress row in; says whether it brought a training step."""
        if row.host_memory is not None:
            first = self.host_memory[0] if self.host_memory else row.host_memory
            self.host_memory = [first, row.host_memory]
        if row.kind != "train":
            if row.kind == "eval" or (row.kind == "prepare" and not self.num_rows):
                self.enter(row.kind, time)
            return False
        if self.bars.is_other(row):
            self.enter("eval", time)
            return False
        if self._repeats(row):
            return False
        self._pace(row, time)
        self.enter("train", time)
        self.num_rows += 1
        self.is_done = False
        self.last_step = time
        self.step = row.step if row.step is not None else self.step
        if row.num_steps:
            self.num_steps, self.is_epoch = row.num_steps, row.is_epoch
        self.tokens_per_s = row.tokens_per_s or self.tokens_per_s
        self.loss = row.loss if row.loss is not None else self.loss
        return True

    def _repeats(self, row: StepRow) -> bool:
        """A bar drawn again without a new step; step 0 of a bar is no step yet."""
        if row.step is None:
            return False
        return row.step == self.step or (row.step == 0 and row.loss is None)

    def _pace(self, row: StepRow, time: float) -> None:
        steps = (row.step - self.step) if row.step is not None and self.step is not None else 1
        self.steps_done += steps if 0 < steps < 10000 else 1
        interval = time - self.last_step
        steps = self._steps_since_paced(row.step, steps) if interval > 0 else steps
        in_train = self.phase == "train"
        if in_train and interval > 0 and self.num_rows >= WARMUP_ROWS - 1:
            self.intervals.append(interval)
            self.longest_pause = max(self.longest_pause, interval)
        step_s = row.step_s if row.step_s is not None else self._derived(interval, steps, in_train)
        if step_s is not None and step_s > 0:
            self.pace.observe(step_s, self.num_rows)
        if row.tokens_per_s:
            self.token_pace.observe(1.0 / row.tokens_per_s, self.num_rows)
        if row.data_s is not None and row.step_s:
            self.data_times.append(min(row.data_s, row.step_s))

    def _steps_since_paced(self, step: int | None, steps: int) -> int:
        """Steps since the last row with a time of its own: rows that were read together share one time."""
        before, self.paced_step = self.paced_step, step
        return step - before if step is not None and before is not None else steps

    def _derived(self, interval: float, steps: int, in_train: bool) -> float | None:
        if not in_train or interval <= 0 or steps <= 0 or self.num_rows < WARMUP_ROWS:
            return None
        return interval / steps

    # --- what is known ---------------------------------------------------------------------------

    @property
    def has_stepped(self) -> bool:
        """Whether a step was seen, here or before watching began."""
        return self.num_rows > 0 or (self.context.typical_step_s or 0.0) > 0 or self.context.warmup_done is True

    @property
    def is_unseen(self) -> bool:
        """Whether steps may have come unseen: watching began midway, without output, and nobody told of them."""
        context = self.context
        return context.joined_midway and not self.has_output and not self.phase and context.typical_step_s is None

    @property
    def step_s(self) -> float | None:
        """Median seconds a step of the newest rows."""
        return self.pace.newest_s or self.context.typical_step_s or None

    @property
    def usual_s(self) -> float | None:
        """Median seconds a step of all that is remembered."""
        return self.pace.usual_s

    @property
    def is_blind(self) -> bool:
        """Whether nothing can be said about silence: watching began midway, and no output is seen at all."""
        context = self.context
        return context.joined_midway and not self.has_output and context.seen_line_s is None

    @property
    def is_at_end(self) -> bool:
        """Whether the newest row is the last of all steps; of an epoch's steps it says nothing."""
        return not self.is_epoch and (self.num_steps or 0) > 1 and (self.step or 0) >= (self.num_steps or 0)

    def due_s(self) -> float:
        """The longest usual time between two progress rows; a pause seen only once is not usual."""
        rows = self.due[0]
        if rows < 0 or self.num_rows - rows >= DUE_EVERY or self.num_rows < DUE_EVERY * WARMUP_ROWS:
            self.due = self.num_rows, self._due_s()
        return self.due[1]

    def _due_s(self) -> float:
        typical = self.context.typical_step_s or self.step_s or 0.0
        ordered = sorted(self.intervals)
        if len(ordered) >= USUAL_ROWS and ordered[-1] > ONCE_FACTOR * ordered[-2]:
            ordered.pop()
        if not ordered:
            return typical
        return max(ordered[math.ceil(0.99 * len(ordered)) - 1], typical)

    def silence(self, now: float) -> Silence:
        """How long what is due in this phase has been absent."""
        phase = self.phase if self.has_stepped else (self.phase or "starting")
        due = self.due_s()
        if self.is_blind:
            return Silence(0.0, STALL_EXTRA_S, HANG_FLOOR_S, phase)
        if self.has_stepped and phase in TRAINING:
            return self._of_steps(now, due)
        since = now - max(self.last_line, self.last_activity, self.phase_since)
        least = PHASE_FLOOR_S.get(phase if self.has_stepped else "starting", OTHER_FLOOR_S)
        floor = max(least, HANG_FACTOR * due, 3 * self.longest.get(phase, 0.0))
        return Silence(since, floor / 2, floor, phase)

    def _of_steps(self, now: float, due: float) -> Silence:
        stall, floor = self._patience(due)
        hang = max(floor, HANG_FACTOR * due, PAUSE_FACTOR * self.longest_pause)
        if now - self.last_line < STALL_FACTOR * due + STALL_EXTRA_S:
            hang = max(CHATTER_FLOOR_S, CHATTER_FACTOR * due)
        return Silence(now - self.last_step, stall, hang, self.phase or "train", due)

    def _patience(self, due: float) -> tuple[float, float]:
        """After how long silence is odd, and the least after which it is a hang: longer before the pace is known."""
        stall = STALL_FACTOR * due + STALL_EXTRA_S
        is_midway = self.context.joined_midway and self.has_output
        if self.context.typical_step_s or is_midway or len(self.intervals) >= FEW_INTERVALS:
            return stall, HANG_FLOOR_S
        return (stall, FEW_HANG_S) if self.intervals else (max(stall, EARLY_STALL_S), EARLY_HANG_S)

    def slowdown(self) -> float | None:
        """How many times slower than it should be the run is: than a good run, or its own best; None = unknown.

        Where rows tell tokens a second, the tokens must be slow too: steps over longer rows take longer.
        """
        against_good_run = self._against_good_run()
        if against_good_run is not None:
            return against_good_run
        ratio, own = self.pace.slowdown(self.context.typical_step_s), self.pace.ratio()
        if ratio is None:
            return self.token_pace.slowdown(None)
        tokens = self.token_pace.ratio()
        was_seen = own is not None and own >= SEEN_SHARE * ratio  # else all rows are slow, and tokens tell nothing
        return min(ratio, tokens) if was_seen and tokens is not None else ratio

    def slow_text(self, at_least: float) -> str:
        """The pace in words, if a step takes so many times as long as it should; else ""."""
        ratio, step_s = self.slowdown(), self.step_s
        if ratio is None or ratio < at_least:
            return ""
        if step_s is None and self.tokens_per_s:
            return f"{self.tokens_per_s:.4g} tokens/s, {ratio:.1f} times slower than it should be"
        return f"a step takes {step_s:.3g} s, {ratio:.1f} times what it should" if step_s is not None else ""

    def is_at_speed(self) -> bool | None:
        """Whether steps come as quickly as an earlier good run's; None where none is known."""
        ratio = self._against_good_run()
        return None if ratio is None else ratio <= AT_SPEED

    @property
    def knows_pace(self) -> bool:
        """Whether somebody told how long a step takes; else the run itself is all there is to compare with."""
        return bool(self.context.typical_step_s) or self._against_good_run() is not None

    def _against_good_run(self) -> float | None:
        good, present = self.context.baseline, self.pace.present_s() or self.context.typical_step_s
        if good.step_s and present:
            return present / good.step_s
        return good.tokens_per_s / self.tokens_per_s if good.tokens_per_s and self.tokens_per_s else None

    def data_share(self) -> float | None:
        """Part of the newest step times that was waiting for data; None where rows do not say."""
        if len(self.data_times) < 3:
            return None
        return sum(self.data_times) / max(sum(list(self.pace.times)[-len(self.data_times) :]), 1e-9)
