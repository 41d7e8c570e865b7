"""What a watcher says of what came to light: each thing once, a flood at every tenfold number of times. Pure."""

from __future__ import annotations

from dataclasses import replace

from opsctl.detect import rules
from opsctl.detect.compiling import LOST
from opsctl.detect.context import Opinion
from opsctl.detect.exceptions import Trace
from opsctl.detect.kernel import KernelEvent
from opsctl.detect.state import State
from opsctl.detect.words import Hit
from opsctl.records.verdict import Finding

SILENT_ROLES = frozenset({"harmless", "phase", "hint", "done"})


def _tell(state: State, key: str) -> bool:
    """Whether this is worth a finding: the first time, and at every tenfold number of times."""
    times = state.told.get(key, 0) + 1
    state.told[key] = times
    return times in (1, 10, 100, 1000, 10000, 100000)


def of_hit(state: State, hit: Hit, trace: Trace | None) -> list[Finding]:
    """What words in the log, or the exception they belong to, say."""
    if hit.role in SILENT_ROLES or not _tell(state, f"word {hit.name} {hit.cause}"):
        return []
    told = (hit.text,) if trace is None else (trace.text,)
    times = state.told[f"word {hit.name} {hit.cause}"]
    summary = rules.meaning(hit.cause) + (f" (seen {times} times)" if times > 1 else "")
    return [
        Finding(
            hit.time, hit.cause, hit.severity_now, summary, told, hit.advice, hit.rank, hit.where, hit.start, hit.end
        )
    ]


def of_counters(state: State, lost: tuple[tuple[str, str], ...], time: float) -> tuple[Finding, ...]:
    """What torch's own counters say was lost, at the first time and at every tenfold number of times."""
    return tuple(
        Finding(time, cause, "warning", f"{LOST[cause]} lost: {rules.meaning(cause)}", (evidence,), rules.advice(cause))
        for cause, evidence in lost
        if state.compiling.context.compile_expected is not False and _tell(state, f"counter {cause}")
    )


def of_kernel(state: State, event: KernelEvent) -> tuple[Finding, ...]:
    """What a kernel row says, unless it is about another process."""
    if event.is_own is False or not event.cause or not _tell(state, f"kernel {event.cause} {event.xid}"):
        return ()
    return (Finding(event.time, event.cause, event.severity, rules.meaning(event.cause), (event.text,), event.advice),)


def of_verdict(state: State, opinion: Opinion, severity: str) -> Finding:
    """A verdict that is news, with the place in the log that it rests on."""
    lost = f" ({LOST[opinion.cause]} lost)" if opinion.cause in LOST else ""
    summary = f"{opinion.verdict.replace('_', ' ')}: {rules.meaning(opinion.cause)}{lost}"
    advice = opinion.advice or rules.advice(opinion.cause)
    finding = Finding(state.now, opinion.cause, severity, summary, opinion.evidence, advice)
    root = state.words.root(state.progress.num_rows)
    if root is None or root.cause != opinion.cause:
        return finding
    return replace(finding, rank=root.rank, where=root.where, start=root.start, end=root.end)


def of_stall(state: State) -> tuple[Finding, ...]:
    """That steps have stopped coming, once each time."""
    silence = state.progress.silence(state.now)
    if state.end is not None or not silence.is_stalled:
        state.told.pop("stalled", None)
        return ()
    if "stalled" in state.told:
        return ()
    state.told["stalled"] = 1
    text = f"no step for {silence.since_s:.0f} s (phase {silence.phase}); hung after {silence.hang_s:.0f} s"
    return (Finding(state.now, "stalled", "warning", "steps have stopped coming", (text,)),)
