"""A watch as plain rows of text, for pipes and log files: one row a change. Pure; prints nothing."""

from __future__ import annotations

from opsctl.cli.gauges import clean, clock, compact, significant
from opsctl.cli.panels import step_s
from opsctl.ops.watch_state import WatchEvent, WatchState
from opsctl.records.verdict import Finding, Verdict

PROGRESS_PERIOD_S = 10.0
_LAST_ROWS = 10
_INDENT = " " * 10


class PlainRows:
    """Remembers what was said, so that only changes are."""

    def __init__(self) -> None:
        self._said: tuple[str, str] | None = None
        self._step: int | str | None = None
        self._progress_time = 0.0
        self._is_introduced = False
        self._is_ended = False

    def after(self, state: WatchState, event: WatchEvent) -> list[str]:
        """The rows that `event`, which led to `state`, gives rise to."""
        if event.kind == "status" and not self._is_introduced:
            self._is_introduced = True
            return [self._who(state)]
        if event.kind == "finding":
            return [finding_row(state.findings[-1])]
        if not state.is_caught_up and event.kind != "link":
            return []
        return self._changes(state, event) + self._end(state, event)

    def _who(self, state: WatchState) -> str:
        assert state.status is not None
        run = state.status.run
        return f"{clock(run.created)}  {clean(run.run_id)} on {clean(state.target)}: {state.status.state}"

    def _changes(self, state: WatchState, event: WatchEvent) -> list[str]:
        shown = state.shown_verdict
        key = (shown.verdict, shown.cause)
        step = state.preparation or shown.step
        if key != self._said:
            self._said, self._step, self._progress_time = key, step, event.time
            return verdict_rows(shown, state, event.time - state.clock_ahead_s)
        if step == self._step or event.time - self._progress_time < PROGRESS_PERIOD_S:
            return []
        self._step, self._progress_time = step, event.time
        return [f"{clock(event.time - state.clock_ahead_s)}  {progress_words(state)}"]

    def _end(self, state: WatchState, event: WatchEvent) -> list[str]:
        is_over = event.kind == "status" and state.status is not None and state.status.state in ("over", "lost")
        if not is_over or self._is_ended or state.verdict.verdict == "finished":
            return []
        self._is_ended = True
        return [f"{_INDENT}| {clean(row.text)}" for row in state.log_rows[-_LAST_ROWS:]]


def finding_row(finding: Finding) -> str:
    """One finding on one row."""
    where = f" ({clean(finding.where)})" if finding.where else ""
    return f"{clock(finding.time)}  {finding.severity}: {finding.cause}: {clean(finding.summary)}{where}"


def verdict_rows(found: Verdict, state: WatchState, now: float) -> list[str]:
    """A verdict with its cause, and with evidence and advice where it has them."""
    cause = "" if found.cause in ("ok", "") else f" {clean(found.cause)} (confidence {found.confidence:.0%})"
    words = progress_words(state)
    rows = [f"{clock(found.since or now)}  {found.verdict.upper()}{cause}" + (f"  {words}" if words else "")]
    rows += [f"{_INDENT}- {clean(one)}" for one in found.evidence]
    return rows + ([f"{_INDENT}-> {clean(found.advice)}"] if found.advice else [])


def progress_words(state: WatchState) -> str:
    """Step, loss, speed and phase, as far as they are known."""
    found = state.verdict
    pace = step_s(state)
    parts = []
    if found.step is not None:
        parts.append(f"step {found.step}" + (f"/{found.num_steps}" if found.num_steps else ""))
    elif state.preparation:
        parts.append(clean(state.preparation))
    if found.loss is not None:
        parts.append(f"loss {significant(found.loss)}")
    if pace and not state.exit:
        parts.append(f"{compact(1 / pace)} steps/s")
    if found.tokens_per_s is not None:
        parts.append(f"{compact(found.tokens_per_s)} tokens/s")
    if found.phase:
        parts.append(f"phase {clean(found.phase)}")
    return "  ".join(parts)
