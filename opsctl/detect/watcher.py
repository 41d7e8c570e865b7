"""The fold that watches a job: events in, findings out, and a verdict at any moment.

`observe` changes the state it is given and returns it: keep one state a job. Equal events give equal
answers. No I/O and no clock: time comes with the events.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from opsctl.records import End, Event, Finding, Line, Sample, Verdict

_STEP = re.compile(r"\bstep\s+(\d+)(?:/(\d+))?|\|\s*(\d+)/(\d+) \[", re.IGNORECASE)
_LOSS = re.compile(r"\bloss[=: ']+(\S+?)[,\]} |]", re.IGNORECASE)


@dataclass(frozen=True)
class Context:
    """What is known about a job before it says anything; None is unknown, not false."""

    compile_expected: bool | None = None
    cudagraphs_expected: bool | None = None
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    world_size: int | None = None
    nccl_timeout_s: float | None = None


@dataclass
class State:
    """Everything learned so far; changed in place by `observe`."""

    context: Context
    started: float
    now: float
    last_line: float
    last_step: float
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    phase: str = ""
    stopped_since: float | None = None
    end: End | None = None
    last_rows: list[str] = field(default_factory=list)


def start(context: Context, time: float) -> State:
    """The state of a job that began at `time`."""
    return State(context, time, time, time, time)


def observe(state: State, event: Event) -> tuple[State, tuple[Finding, ...]]:
    """Fold one event in; returns the same, changed state and what this event brought to light."""
    state.now = max(state.now, event.time)
    if isinstance(event, Line):
        _line(state, event)
    elif isinstance(event, Sample):
        _sample(state, event)
    elif isinstance(event, End):
        state.end = event
    return state, ()


def _line(state: State, line: Line) -> None:
    state.last_line = line.time
    if line.source == "metrics":
        _metrics(state, line)
        return
    state.last_rows = [*state.last_rows[-19:], line.text]
    match = _STEP.search(line.text)
    if match:
        step, num_steps = (match.group(1), match.group(2)) if match.group(1) else match.group(3, 4)
        state.step, state.last_step = int(step), line.time
        state.num_steps = int(num_steps) if num_steps else state.num_steps


def _metrics(state: State, line: Line) -> None:
    try:
        row = json.loads(line.text)
    except ValueError:
        return  # a row cut in the middle says nothing
    if "step" in row:
        state.step, state.last_step = row["step"], line.time
    state.num_steps = row.get("num_steps", state.num_steps)
    state.loss = row.get("loss", state.loss)
    state.tokens_per_s = row.get("tokens_per_s", state.tokens_per_s)
    state.phase = row.get("phase", state.phase)


def _sample(state: State, sample: Sample) -> None:
    stopped = sample.process is not None and sample.process.states[:1] == "T"
    state.stopped_since = (state.stopped_since or sample.time) if stopped else None


def judge(state: State) -> Verdict:
    """What all that was seen amounts to; cheap, and allowed after any event."""
    verdict, cause, evidence = _weigh(state)
    return Verdict(
        verdict,
        cause,
        since=state.now,
        evidence=evidence,
        step=state.step,
        num_steps=state.num_steps,
        loss=state.loss,
        tokens_per_s=state.tokens_per_s,
        phase=state.phase,
    )


def _weigh(state: State) -> tuple[str, str, tuple[str, ...]]:
    if state.end is not None:
        return _ended(state, state.end)
    if state.stopped_since is not None:
        return "hung", "cause_unknown", ("the job's process is stopped (state T)",)
    return ("starting" if state.step is None else "healthy"), "ok", ()


def _ended(state: State, end: End) -> tuple[str, str, tuple[str, ...]]:
    if end.stop_requested or end.exit_code == 75:
        return "stopped", "ok", ()
    if end.exit_code == 0:
        return "finished", "ok", ()
    cause = "sigkill_unknown" if end.signal == 9 else "cause_unknown"
    return "crashed", cause, tuple(state.last_rows[-5:])
