"""What is known of a run as rows of styled text: verdict, progress, findings, log. Pure; prints nothing."""

from __future__ import annotations

from rich.text import Text

from opsctl.cli.frame import LABEL, LOOKS, QUIET, SEVERITIES, Frame, looks
from opsctl.cli.gauges import UNKNOWN, bar, clean, clock, compact, duration, significant
from opsctl.ops.watch_state import WatchState
from opsctl.records.verdict import Finding, Verdict

# --- who and how ----------------------------------------------------------------------------------


def title(state: WatchState, frame: Frame) -> Text:
    """Which run, where, and for how long."""
    if state.status is None:
        return frame.cut(Text(f"waiting for {clean(state.target)}", "bold"))
    run = state.status.run
    left = Text.assemble((clean(run.run_id), "bold"), (" on ", LABEL), clean(state.target))
    return frame.sides(left, Text(_age(state, frame), LABEL))


def _age(state: WatchState, frame: Frame) -> str:
    assert state.status is not None
    created = state.status.run.created
    if state.exit and state.exit.attempts:
        ended = state.exit.attempts[-1].ended
        return f"ended {clock(ended)} after {duration(ended - created)}"
    return f"{state.status.state} since {clock(created)}, {duration(frame.now - created)}"


def verdict(state: WatchState, frame: Frame, max_rows: int) -> list[Text]:
    """The verdict and, where it is not good, what it rests on and what to do."""
    found = state.shown_verdict
    rows = [_verdict_row(found, frame)]
    is_odd = found.verdict == "healthy" and bool(found.evidence)  # well, but steps have stopped or hardware complains
    if found.verdict in QUIET and not is_odd and not (state.status and state.status.message):
        return rows
    return rows + _reasons(state, found, frame, max_rows - 1)


def _verdict_row(found: Verdict, frame: Frame) -> Text:
    symbol, style = looks(found.verdict, is_ascii=frame.is_ascii)
    left = Text.assemble((f"{symbol} {found.verdict.upper().replace('_', ' ')}", style))
    if found.cause not in ("ok", ""):
        left.append("  ").append(clean(found.cause).replace("_", " "), "bold")
    if found.since:
        left.append(f"  since {clock(found.since)}, {duration(frame.now - found.since)}", LABEL)
    is_sure = found.verdict in QUIET or found.confidence >= 0.995
    right = Text() if is_sure else Text(f"confidence {found.confidence:.0%}", LABEL)
    return frame.sides(left, right)


def _reasons(state: WatchState, found: Verdict, frame: Frame, max_rows: int) -> list[Text]:
    """Evidence and advice, or what the verdict means; the advice and a row of each evidence go first."""
    dot, arrow = ("-", "->") if frame.is_ascii else ("\u00b7", "\u2192")
    advice = [Text(row, "bold") for row in frame.wrapped(f"  {arrow} ", found.advice, min(3, max_rows - 1))]
    message = state.status.message if state.status else ""
    said = [*filter(None, (message, *found.evidence))] or [LOOKS.get(found.verdict, LOOKS["unknown"])[3]]
    room = max_rows - len(advice)
    rows: list[Text] = []
    for number, one in enumerate(said):
        left = room - len(rows) - min(len(said) - number - 1, 2)  # a row each for the next two
        rows += [Text(row) for row in frame.wrapped(f"  {dot} ", one, min(3, left))] if len(rows) < room else []
    return [frame.cut(row) for row in rows + advice]


# --- progress -------------------------------------------------------------------------------------


def step_s(state: WatchState) -> float | None:
    """Seconds a step: as the verdict has it, else as seen here."""
    if state.verdict.step_s:
        return state.verdict.step_s
    if len(state.steps) < 2:
        return None
    (first_time, first), (last_time, last) = state.steps[0], state.steps[-1]
    return (last_time - first_time) / (last - first) if last > first else None


def progress(state: WatchState, frame: Frame) -> list[Text]:
    """Steps with rate and time left, then loss, tokens and phase."""
    return [_steps(state, frame), _learning(state, frame)]


def _steps(state: WatchState, frame: Frame) -> Text:
    found = state.verdict
    if found.step is None:
        return Text.assemble(("step  ", LABEL), (clean(state.preparation) or _phase(state) or "none yet", ""))
    right = Text(_pace(state), LABEL)
    left = Text.assemble(("step  ", LABEL), (f"{found.step:,}", "bold"))
    if not found.num_steps:
        return frame.sides(left, right)
    share = found.step / found.num_steps
    left.append(f" / {found.num_steps:,}  ")
    percent = f"  {share:.0%}  "
    done, rest = bar(share, width=frame.width - left.cell_len - len(percent) - right.cell_len, is_ascii=frame.is_ascii)
    return frame.cut(Text.assemble(left, (done, "green"), (rest, LABEL), percent, right))


def _pace(state: WatchState) -> str:
    pace = step_s(state)
    found = state.verdict
    if not pace or state.exit:
        return ""
    rate = f"{compact(1 / pace)} steps/s" if pace < 1 else f"{compact(pace)} s/step"
    if not found.num_steps or found.step is None:
        return rate
    return f"{rate}  {duration((found.num_steps - found.step) * pace)} left"


def _phase(state: WatchState) -> str:
    return clean(state.verdict.phase)


def _learning(state: WatchState, frame: Frame) -> Text:
    found = state.verdict
    tokens = f"{compact(found.tokens_per_s)} tokens/s" if found.tokens_per_s is not None else ""
    phase = f"phase {_phase(state)}" if _phase(state) and found.step is not None else ""
    right = Text("  ".join(filter(None, (tokens, phase))))
    left = Text.assemble(("loss  ", LABEL), (significant(found.loss) if found.loss is not None else UNKNOWN, "bold"))
    losses = [row.get("loss") for row in state.metrics] or state.losses
    known = [loss if isinstance(loss, (int, float)) and abs(loss) < float("inf") else None for loss in losses]
    width = min(60, frame.width - left.cell_len - right.cell_len - 4)
    if sum(loss is not None for loss in known) > 1 and width >= 8:
        left.append("  ").append(frame.spark(known, min(width, len(known)), None, None), "cyan")
    return frame.sides(left, right)


# --- findings and log -----------------------------------------------------------------------------


def findings(state: WatchState, frame: Frame, max_rows: int) -> list[Text]:
    """The newest findings, the last one lowest."""
    return [_finding(one, frame) for one in state.findings[len(state.findings) - max_rows :]] if max_rows > 0 else []


def _finding(finding: Finding, frame: Frame) -> Text:
    row = Text.assemble((f"{clock(finding.time)} ", LABEL))
    row.append(f"{clean(finding.cause).replace('_', ' ')}  ", SEVERITIES.get(finding.severity, ""))
    row.append(clean(finding.summary))
    if finding.where:  # its end tells most: file and line
        row.append(f"  {'/'.join(clean(finding.where).split('/')[-2:])}", LABEL)
    return frame.cut(row)


def log(state: WatchState, frame: Frame, max_rows: int) -> list[Text]:
    """The last rows of the log, harmless for the terminal."""
    rows = state.log_rows
    return [frame.cut(Text(clean(row.text))) for row in rows[max(0, len(rows) - max_rows) :]]
