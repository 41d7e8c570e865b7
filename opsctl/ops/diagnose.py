"""Says one verdict about files that anyone may have: a log, nvidia-smi's output, kernel rows, what is known besides.

The same folds as a live run's: the files are turned into the events that a recorder would have seen.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.detect import watcher
from opsctl.detect.source import Source, source_of
from opsctl.errors import UsageError
from opsctl.ops import recorded_run
from opsctl.ops.material import Cut, Material, OnRead, read_case, read_files
from opsctl.ops.material_events import context_of, stream
from opsctl.ops.uniform_rows import UniformRows
from opsctl.records.events import End, Event, Line, Sample, Tick
from opsctl.records.verdict import Finding, Verdict

KEPT_FINDINGS = 200
CLOSE_ROWS = 2000  # so many rows are judged one by one; of a longer log only those that brought something to light
ENDINGS = frozenset({"finished", "stopped", "crashed"})
_NO_RUN = "this holds no rows of a training run: no step, no phase, no failure and no end"
_NO_RUN_ADVICE = "Name the file that holds the training's own output; --context says what else is known of it."
_UNTOLD = "whether the process still lives was not said: "


@dataclass(frozen=True)
class Decided:
    """After what the verdict was right and stayed: row `number` of the log, a poll, a kernel row, or the present."""

    kind: str = "start"  # start, row, poll, kernel row, now
    number: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on files, where in the log its cause stands, and how it came about."""

    verdict: Verdict
    source: Source | None = None
    findings: tuple[Finding, ...] = ()
    num_rows: int = 0
    num_polls: int = 0
    decided: Decided = Decided()
    took_s: float = 0.0


def diagnose_case(folder: Path) -> Diagnosis:
    """The diagnosis of a folder in the format of the watch cases; raises UsageError for one that is none."""
    return diagnose(case_in(folder))


def case_in(folder: Path) -> Material:
    """The material in a case's folder; raises UsageError where it is no such folder."""
    if not (folder / "case.yaml").exists():
        hint = "name the log itself, a run's folder, or one with case.yaml and log.txt, smi.csv, smi.txt, dmesg.txt"
        raise UsageError(f"the folder {folder} holds neither run.json nor case.yaml", hint=hint)
    return read_case(folder)


def diagnose_files(
    log: Path | None = None, *, smi: Path | None = None, dmesg: Path | None = None, context: Path | None = None
) -> Diagnosis:
    """The diagnosis of single files; raises UsageError and ConfigError, naming the file."""
    return diagnose(read_files(log, smi=smi, dmesg=dmesg, context=context))


def diagnose(material: Material, *, cut: Cut | None = None) -> Diagnosis:
    """The diagnosis of `material`; `cut` says into which pieces the log is fed, which changes nothing."""
    began = time.perf_counter()
    found = stream(material, cut=cut)
    reading = _Reading(watcher.start(context_of(material, found), found.first), found.rows)
    is_told = material.context.get("proc") is not None or material.context.get("exit_code") is not None
    for event in found.events:
        if isinstance(event, Tick) and not is_told:
            reading.guess_end(event.time)
        reading.read(event)
    return reading.diagnosis(time.perf_counter() - began)


def diagnose_run(folder: Path, *, on_read: OnRead) -> Diagnosis:
    """The diagnosis of a run's own folder: what its recorder saw, judged again; raises ConfigError for a broken one."""
    began = time.perf_counter()
    run = recorded_run.record_of(folder)
    reading = _Reading(watcher.start(recorded_run.context_of(run), run.created))
    for event in recorded_run.events(folder, run, on_read=on_read):
        reading.read(event)
    return reading.diagnosis(time.perf_counter() - began)


class _Reading:
    """The folds' state while the events pass, and when the verdict last changed."""

    def __init__(self, state: watcher.State, rows: UniformRows | None = None) -> None:
        self._state = state
        self._rows = rows
        self._counts = {"row": 0, "poll": 0, "kernel row": 0}
        self._headline = ("", "")
        self._decided = Decided()
        self._findings: list[Finding] = []
        self._doubt = ""

    def read(self, event: Event) -> None:
        self._state, findings = watcher.observe(self._state, event)
        kind = _kind(event)
        if kind in self._counts:
            self._counts[kind] += 1
        if findings:
            self._findings = [*self._findings, *findings][-KEPT_FINDINGS:]
        elif kind == "row" and self._counts[kind] > CLOSE_ROWS:
            return  # as nearly all rows of a long log
        self._look(Decided(kind, self._num_rows if kind == "row" else self._counts.get(kind, 0)))

    @property
    def _num_rows(self) -> int:
        """All rows of the log so far, also those that were left out."""
        return self._counts["row"] + (self._rows.num_dropped if self._rows is not None else 0)

    def _look(self, now: Decided) -> None:
        verdict = watcher.judge(self._state)
        if (verdict.verdict, verdict.cause) != self._headline:
            self._headline, self._decided = (verdict.verdict, verdict.cause), now

    def guess_end(self, now: float) -> None:
        """Where nobody said whether the process lives: take it for ended if the log ends as a process does."""
        state, _ = watcher.observe(copy.deepcopy(self._state), End(now))
        verdict = watcher.judge(state)
        words, rows = state.words, state.progress.num_rows
        has_reason = verdict.verdict != "crashed" or bool(words.failures(rows) or words.stop(rows, within=0))
        if verdict.verdict in ENDINGS and verdict.cause != "cause_unknown" and has_reason:
            self._state, self._doubt = state, _UNTOLD + "the log reads as one of a process that ended"
            self._look(Decided("now"))
        else:
            self._doubt = _UNTOLD + "judged as of its last row"

    def diagnosis(self, took_s: float) -> Diagnosis:
        verdict = watcher.judge(self._state)
        self._look(Decided("now"))
        if self._doubt and (verdict.verdict, verdict.cause) == ("starting", "ok") and not _shows_a_run(self._state):
            self._decided = Decided("now")
            verdict = Verdict("unknown", "cause_unknown", verdict.since, 0.3, (_NO_RUN,), _NO_RUN_ADVICE)
        elif self._doubt:
            verdict = replace(verdict, evidence=(*verdict.evidence, self._doubt))
        if self._counts["kernel row"] and not self._state.kernel.events:
            told = f"none of the {self._counts['kernel row']} kernel rows tells of a fault"
            verdict = replace(verdict, evidence=(*verdict.evidence, told))
        return Diagnosis(
            verdict,
            source_of(self._state, verdict.cause),
            tuple(self._findings),
            self._num_rows,
            self._counts["poll"],
            self._decided,
            took_s,
        )


def _shows_a_run(state: watcher.State) -> bool:
    """Whether anything told of a training run: a progress row, known words, a phase, an exception, a GPU at work."""
    told = state.progress.num_rows or state.progress.phase or state.words.counts
    return bool(told or (state.gpus.utilization_pct() or 0.0) > 0.0)


def _kind(event: Event) -> str:
    if isinstance(event, Line):
        return "kernel row" if event.source == "kernel" else "row"
    return "poll" if isinstance(event, Sample) and (event.gpus or event.gpu_problem) else "now"
