"""The fold that watches a job: events in, findings out, and a verdict at any moment.

`observe` changes the state it is given and returns it: keep one state a job. Equal events give equal
answers. No I/O and no clock: time comes with the events.
"""

from __future__ import annotations

import math

from opsctl.detect import degraded, ending, metrics, rows, rules, running, telling
from opsctl.detect.context import Context as Context  # a part of this module's interface, as is State
from opsctl.detect.context import Opinion
from opsctl.detect.lines import shape_key
from opsctl.detect.progress import TRAINING
from opsctl.detect.state import State as State
from opsctl.detect.state import initial
from opsctl.detect.steps import Shape, StepRow, shape_of
from opsctl.detect.words import Hit
from opsctl.records.events import End, Event, Line, Sample
from opsctl.records.verdict import Finding, Verdict

_SEVERITIES = {"crashed": "fatal", "hung": "error", "eager_fallback": "error", "degraded": "warning"}
_NOTES = frozenset({"hardware_warning", "telemetry_unavailable", "driver_mismatch", "elastic_restart"})
MAX_SHAPES = 512
CLOCK_SPREAD_S = 5.0
MAX_LOOKED = 2000  # characters
LAST_ROWS = 20
UNSEEN_FLAT_S, UNSEEN_FLAT_SAMPLES = 20.0, 6  # without output nobody knows whether steps come yet
_MARKS = ("Traceback", '  File "', "Error", "Exception", "Root Cause", "Interrupt", "====", "----")
_PHASES = {
    "eval_begins": "eval",
    "checkpoint_begins": "checkpoint",
    "compile_begins": "compile",
    "prepare_begins": "prepare",
    "reload_begins": "reload",
}


def start(context: Context, time: float) -> State:
    """The state of a job that is watched from `time` on."""
    return initial(context, time)


def observe(state: State, event: Event) -> tuple[State, tuple[Finding, ...]]:
    """Fold one event in; returns the same, changed state and what this event brought to light."""
    if event.time > state.now:
        state.now = event.time
    state.num_events += 1
    if isinstance(event, Line):
        return state, _log(state, event) if event.source == "log" else _line(state, event)
    if isinstance(event, Sample):
        _sample(state, event)
        return state, ()  # what it means is said at the next tick
    if isinstance(event, End):
        state.end = event
    return state, _news(state)


def settle(state: State, time: float) -> State:
    """Take what was read so far for old: only from `time` on are rows seen as they come."""
    state.progress.settle(time)
    return state


def turns_in_s(state: State) -> float | None:
    """Seconds until silence alone will be odd, or too long; None where it is both already, or the job has ended."""
    silence = state.progress.silence(state.now)
    left = [limit - silence.since_s for limit in (silence.stall_s, silence.hang_s)]
    return min((seconds for seconds in left if seconds > 0), default=None) if state.end is None else None


def judge(state: State) -> Verdict:
    """What all that was seen amounts to; cheap, and allowed after any event."""
    opinion = _opinion(state)
    progress = state.progress
    fade = progress.silence(state.now).fade if state.end is None else 1.0
    return Verdict(
        opinion.verdict,
        opinion.cause,
        since=state.headline_since if (opinion.verdict, opinion.cause) == state.headline else state.now,
        confidence=round(opinion.confidence, 2),
        evidence=opinion.evidence,
        advice=opinion.advice or rules.advice(opinion.cause),
        step=progress.step,
        num_steps=progress.num_steps,
        loss=progress.loss if progress.loss is not None and math.isfinite(progress.loss) else None,
        tokens_per_s=progress.tokens_per_s and progress.tokens_per_s / fade,
        step_s=progress.step_s and progress.step_s * fade,
        phase=progress.phase,
    )


def _opinion(state: State) -> Opinion:
    """The opinion after the newest event; formed once, however often it is asked for."""
    if state.opinion is None or state.opinion[0] != state.num_events:
        opinion = ending.weigh(state, state.end) if state.end is not None else running.weigh(state)
        state.opinion = state.num_events, opinion
    return state.opinion[1]


# --- lines -------------------------------------------------------------------------------------------


def _line(state: State, line: Line) -> tuple[Finding, ...]:
    if line.source == "kernel":
        event = state.kernel.observe(_looked_at(line.text), line.time, state.progress.num_rows, is_own=line.is_own)
        return telling.of_kernel(state, event) if event is not None else ()
    return _metrics(state, line)


def _metrics(state: State, line: Line) -> tuple[Finding, ...]:
    found = metrics.parse(line.text)
    if found is None:
        return ()
    progress = state.progress
    progress.has_metrics = True
    progress.hear(line.time)
    if found.phase:
        progress.enter(found.phase, line.time)
    lost = telling.of_counters(state, state.compiling.count(found.counters, progress.num_rows), line.time)
    if found.row.kind == "train" and found.row.step is not None and progress.observe(found.row, _written(found, line)):
        return (*lost, *_stepped(state, found.row))
    return lost


def _written(found: metrics.MetricsRow, line: Line) -> float:
    """When the job wrote a row that may have waited to be read, if its clock agrees with ours."""
    own = found.time
    return own if own is not None and line.time - CLOCK_SPREAD_S <= own <= line.time else line.time


def _log(state: State, line: Line) -> tuple[Finding, ...]:
    progress, text = state.progress, line.text
    if len(text) > MAX_LOOKED:
        text = _looked_at(text)
    progress.hear(line.time)
    state.num_rows_seen += 1
    key = shape_key(text)
    known = state.shapes.get(key) or _look(state, key)
    is_silent, shape = known
    found: tuple[Finding, ...] = ()
    if not is_silent or state.exceptions.open:
        whole = line if text is line.text else line._replace(text=text)
        found = tuple(finding for row in rows.rows(whole) for finding in _row(state, row))
    if shape is not None:
        found += _step(state, shape.read(text), line.time)
    if text and not text.isspace():
        _keep(state.last_rows, text)
    return found


def _looked_at(text: str) -> str:
    """As much of a row as is worth a look: an endless one must not cost endless time."""
    return text if len(text) <= MAX_LOOKED else f"{text[: MAX_LOOKED - 500]} ... {text[-500:]}"


def is_quiet(key: str) -> bool:
    """Whether no row of this shape can match a rule or belong to a traceback."""
    return not any(mark in key for mark in _MARKS) and not rules.book().may_match(key.lower())


def _look(state: State, key: str) -> tuple[bool, Shape | None]:
    """Understand a shape of rows: whether no rule can match it, and what progress it reports."""
    if len(state.shapes) >= MAX_SHAPES:
        state.shapes.clear()
    found = state.shapes[key] = is_quiet(key), shape_of(key)
    return found


def _keep(last_rows: list[str], text: str) -> None:
    last_rows.append(text)
    if len(last_rows) > 2 * LAST_ROWS:
        del last_rows[:LAST_ROWS]


def _step(state: State, row: StepRow, time: float) -> tuple[Finding, ...]:
    if state.progress.has_metrics:
        state.progress.act(time)
        return ()
    return _stepped(state, row) if state.progress.observe(row, time) else ()


def _stepped(state: State, row: StepRow) -> tuple[Finding, ...]:
    """A step came: its loss counts, and what was said about silence is over."""
    state.losses.observe(row)
    is_alarmed = state.headline[0] == "hung" or "stalled" in state.told
    return _news(state) if is_alarmed or state.losses.is_alarming else ()


def _row(state: State, row: rows.Row) -> list[Finding]:
    progress = state.progress
    state.words.root_row(row.text)
    is_source = state.exceptions.is_source(row)
    trace = state.exceptions.observe(row, state.last_rows[-1] if state.last_rows else "")
    hit = None
    if not is_source or trace is not None:
        rule = rules.match(row.text) or (rules.match(trace.text) if trace is not None else None)
        hit = _hit(state, row, rule) if rule is not None else None
    if trace is not None and (hit is None or hit.role in ("fatal", "echo")):
        hit = state.words.raised(trace, hit, progress.num_rows, progress.steps_done)
    return telling.of_hit(state, hit, trace) if hit is not None else []


def _hit(state: State, row: rows.Row, rule: rules.Rule) -> Hit | None:
    progress = state.progress
    if rule.role == "phase":
        phase = _PHASES[rule.name]
        if not progress.has_metrics and (phase != "prepare" or not progress.num_rows):
            progress.enter(phase, row.time)
        state.words.observe(row, rule, progress.num_rows, progress.steps_done)
        return None
    if rule.role == "done":
        progress.finish(row.time)
    if rule.role in telling.SILENT_ROLES and rule.role != "hint":
        return None
    return state.words.observe(row, rule, progress.num_rows, progress.steps_done)


# --- samples -----------------------------------------------------------------------------------------


def _sample(state: State, sample: Sample) -> None:
    progress = state.progress
    state.gpus.observe(sample, in_train=progress.phase in TRAINING, rows=progress.num_rows)
    if state.progress.num_rows and state.progress.phase == "train":
        state.gpus.settle()
    elif degraded.runs(state) and not state.progress.has_output:
        state.gpus.settle(UNSEEN_FLAT_S, UNSEEN_FLAT_SAMPLES)
    state.kernel.bus_ids = state.gpus.bus_ids() or state.kernel.bus_ids
    state.disk_free_mib = sample.disk_free_mib if sample.disk_free_mib is not None else state.disk_free_mib
    if sample.process is not None and state.processes.observe(sample.process, sample.time):
        state.progress.act(sample.time)


# --- findings ----------------------------------------------------------------------------------------


def _news(state: State) -> tuple[Finding, ...]:
    """A finding when the verdict changes for the worse, when the run stalls, or when it ends."""
    opinion = _opinion(state)
    headline = (opinion.verdict, opinion.cause)
    found = list(telling.of_stall(state))
    if headline == state.headline:
        return tuple(found)
    state.headline, state.headline_since = headline, state.now
    severity = _SEVERITIES.get(opinion.verdict, "info" if opinion.cause in _NOTES else "")
    if severity:
        found.append(telling.of_verdict(state, opinion, severity))
    return tuple(found)
