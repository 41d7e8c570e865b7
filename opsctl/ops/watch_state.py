"""What a watcher of a run knows: a pure fold of its events. No I/O and no clock; time comes with the events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.detect.lines import LineState, flush, split
from opsctl.records.call import from_json
from opsctl.records.events import Sample
from opsctl.records.run import ExitRecord, RunStatus
from opsctl.records.verdict import Finding, Verdict

HISTORY = 240  # samples and metrics rows that sparklines can show
KEPT_ROWS = 200
KEPT_FINDINGS = 50
_RATE_POINTS = 32

# what `watch` ends with, by the run's last verdict
EXIT_CODES = {
    "starting": 0,
    "healthy": 0,
    "finished": 0,
    "degraded": 1,
    "eager_fallback": 1,
    "hung": 1,
    "crashed": 1,
    "unknown": 4,
    "stopped": 75,
}


@dataclass(frozen=True)
class WatchEvent:
    """One thing that a watch saw at `time` (operator's clock); `record` is its plain JSON form.

    `kind` is status, finding, metrics, sample, log, verdict, caught_up, exit or link.
    """

    time: float
    kind: str
    record: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of the log; a redraw (progress bar) gives way to the row after it."""

    text: str
    is_redraw: bool = False


@dataclass(frozen=True)
class WatchState:
    """All that is known about the watched run so far."""

    target: str
    status: RunStatus | None = None
    verdict: Verdict = field(default_factory=lambda: Verdict("unknown"))
    findings: tuple[Finding, ...] = ()
    samples: tuple[Sample, ...] = ()
    metrics: tuple[dict[str, Any], ...] = ()
    steps: tuple[tuple[float, int], ...] = ()  # (seen at, step), for a rate where nobody gives one
    losses: tuple[float | None, ...] = ()  # one a step that a verdict named, for jobs without metrics
    rows: tuple[Row, ...] = ()
    reader: LineState = field(default_factory=LineState)
    exit: ExitRecord | None = None
    is_caught_up: bool = False
    link_down_since: float | None = None
    link_problem: str = ""
    clock_ahead_s: float = 0.0  # the operator's clock minus the target's

    @property
    def run_id(self) -> str:
        """The watched run, "" before anything is known."""
        return self.status.run.run_id if self.status else ""

    @property
    def shown_verdict(self) -> Verdict:
        """The verdict to act on: a lost link makes every other one old news."""
        if self.link_down_since is None:
            return self.verdict
        evidence = (self.link_problem,) if self.link_problem else ()
        return replace(
            self.verdict,
            verdict="unknown",
            cause="link_down",
            since=self.link_down_since - self.clock_ahead_s,
            confidence=1.0,
            evidence=evidence,
            advice="the run is not touched by this; the watch reconnects by itself",
        )

    @property
    def preparation(self) -> str:
        """How far a phase before the first step has come, as "phase done/total", "" where nothing says it."""
        last = self.metrics[-1] if self.metrics else {}
        if self.verdict.step is not None or not last.get("step") or not last.get("num_steps"):
            return ""
        return f"{last.get('phase', 'step')} {last['step']}/{last['num_steps']}"

    @property
    def log_rows(self) -> tuple[Row, ...]:
        """The last rows of the log, the unfinished one included."""
        _, rest = flush(self.reader, 0.0)
        return _add_rows(self.rows, tuple(Row(line.text, line.is_redraw) for line in rest))


def exit_code(verdict: str) -> int:
    """The exit code that says this verdict.

    >>> exit_code("finished"), exit_code("hung"), exit_code("unknown"), exit_code("stopped")
    (0, 1, 4, 75)
    """
    return EXIT_CODES.get(verdict, 4)


def observe(state: WatchState, event: WatchEvent) -> WatchState:
    """The state after `event`; kinds that this version does not know change nothing."""
    fold = _FOLDS.get(event.kind)
    return fold(state, event) if fold else state


def _status(state: WatchState, event: WatchEvent) -> WatchState:
    status = from_json(RunStatus, event.record)
    return _judged(replace(state, status=status, exit=status.exit or state.exit), status.verdict, event.time)


def _verdict(state: WatchState, event: WatchEvent) -> WatchState:
    return _judged(state, from_json(Verdict, event.record), event.time)


def _judged(state: WatchState, verdict: Verdict, time: float) -> WatchState:
    steps = state.steps
    if verdict.step is None or (steps and steps[-1][1] == verdict.step):
        return replace(state, verdict=verdict)
    backwards = bool(steps) and verdict.step < steps[-1][1]  # a restart from a checkpoint
    steps = ((time, verdict.step),) if backwards else (*steps, (time, verdict.step))[-_RATE_POINTS:]
    return replace(state, verdict=verdict, steps=steps, losses=(*state.losses, verdict.loss)[-HISTORY:])


def _finding(state: WatchState, event: WatchEvent) -> WatchState:
    finding = from_json(Finding, event.record)
    return replace(state, findings=(*state.findings, finding)[-KEPT_FINDINGS:])


def _metrics(state: WatchState, event: WatchEvent) -> WatchState:
    return replace(state, metrics=(*state.metrics, event.record)[-HISTORY:])


def _sample(state: WatchState, event: WatchEvent) -> WatchState:
    sample = from_json(Sample, event.record)
    ahead_s = event.time - sample.time if state.is_caught_up else state.clock_ahead_s
    return replace(state, samples=(*state.samples, sample)[-HISTORY:], clock_ahead_s=ahead_s)


def _log(state: WatchState, event: WatchEvent) -> WatchState:
    start, end = event.record["start"], event.record["end"]
    reader = state.reader
    if start != reader.offset + len(reader.pending):  # the first piece, or one after a gap
        reader = LineState(offset=start)
    reader, lines = split(reader, event.record["text"].encode(), event.time)
    # undecodable bytes came as replacement characters, which are longer: count in the file's bytes
    reader = replace(reader, offset=end - len(reader.pending))
    rows = _add_rows(state.rows, tuple(Row(line.text, line.is_redraw) for line in lines))
    return replace(state, reader=reader, rows=rows)


def _add_rows(rows: tuple[Row, ...], new: tuple[Row, ...]) -> tuple[Row, ...]:
    kept = list(rows)
    for row in new:
        if kept and kept[-1].is_redraw:
            kept[-1] = row
        else:
            kept.append(row)
    return tuple(kept[-KEPT_ROWS:])


def _caught_up(state: WatchState, event: WatchEvent) -> WatchState:
    return replace(state, is_caught_up=True)


def _exit(state: WatchState, event: WatchEvent) -> WatchState:
    record = from_json(ExitRecord, event.record)
    return _judged(replace(state, exit=record), record.verdict, event.time)


def _link(state: WatchState, event: WatchEvent) -> WatchState:
    if event.record["is_up"]:
        return replace(state, link_down_since=None, link_problem="")
    since = state.link_down_since or event.time
    return replace(state, link_down_since=since, link_problem=event.record["problem"], is_caught_up=False)


_FOLDS: dict[str, Callable[[WatchState, WatchEvent], WatchState]] = {
    "status": _status,
    "verdict": _verdict,
    "finding": _finding,
    "metrics": _metrics,
    "sample": _sample,
    "log": _log,
    "caught_up": _caught_up,
    "exit": _exit,
    "link": _link,
}
