"""Turns a diagnosis's material into the events that a recorder would have seen, in order of time. No I/O of its own.

The log's rows carry no times: they follow from what the rows say about steps, and from the ages in the context.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opsctl.detect import lines, smi, smi_text, steps, watcher
from opsctl.ops.material import Cut, Material
from opsctl.ops.uniform_rows import UniformRows
from opsctl.records.baseline import Baseline
from opsctl.records.events import End, Event, Line, ProcessSample, Sample, Tick

NOW = 2_000_000_000.0  # any moment: only differences count
POLL_S = 5.0  # between polls that carry no times
_STATUSES = {  # from nvidia-smi's manual
    9: "nvidia-smi: the driver is not loaded",
    10: "nvidia-smi: the kernel found an interrupt problem with a GPU",
    12: "nvidia-smi: the NVML library is not there",
    15: "nvidia-smi: the GPU is lost",
    18: "nvidia-smi: driver/library version mismatch",
    124: smi.NO_ANSWER,
}


@dataclass(frozen=True)
class Stream:
    """The events, oldest first, all before `now`; `first` is the moment of the first one."""

    events: Iterator[Event]
    first: float
    now: float
    has_log: bool
    rows: UniformRows


def stream(material: Material, *, cut: Cut | None = None) -> Stream:
    """What a recorder would have seen before the present moment.

    A log is read twice where its end must be known before its begin: beside samples, or with ages.
    """
    known = material.context
    samples = list(_samples(material))
    now = samples[-1].time if samples else NOW
    last_line = now - float(known.get("since_last_line_s") or 0.0)
    kernel = [Line(last_line, row, source="kernel") for row in (material.dmesg or "").splitlines()]
    others = sorted([*samples, *_processes(known, last_line, now)], key=lambda event: event.time)
    is_alone = not others and known.get("since_last_step_s") is None
    end = _LogEnd() if is_alone else _measure(material, cut)
    looked_at = UniformRows(rows(material, cut))
    log = _log(material, looked_at, last_line, end)
    first = next(log, None)
    begun: Iterator[Event] = iter((Tick(last_line),)) if first is None else itertools.chain((first,), log)
    if is_alone:  # the log's own end is the present moment
        began = last_line if first is None else first.time
        return Stream(_closing(begun, kernel, known), began, now, first is not None, looked_at)
    moment = min([last_line if first is None else first.time, *(event.time for event in others[:1])])
    merged = heapq.merge(begun, kernel, others, key=lambda event: event.time)
    return Stream(itertools.chain(merged, (_last(known, now),)), moment, now, first is not None, looked_at)


def _closing(log: Iterator[Event], kernel: list[Line], known: dict[str, Any]) -> Iterator[Event]:
    """A log without company: its rows, the kernel's at the moment of its last, and the present."""
    last = NOW
    for event in log:
        last = event.time
        yield event
    yield from (row._replace(time=last) for row in kernel)
    yield _last(known, last + float(known.get("since_last_line_s") or 0.0))


def _last(known: dict[str, Any], now: float) -> Event:
    """The present moment: an end where one is known of."""
    is_over = known.get("proc", "gone" if known.get("exit_code") is not None else "alive") == "gone"
    return End(now, exit_code=known.get("exit_code")) if is_over else Tick(now)


# --- the log ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LogEnd:
    """How long the log's steps took, and which row is the last that reports one; None where it is not known."""

    total_s: float | None = None
    last_step: int | None = None


class _Pace:
    """Seconds from the first row to each, by what the rows say about steps."""

    def __init__(self, typical_s: float) -> None:
        self._typical_s = typical_s
        self._step: int | None = None
        self._has_stepped = False
        self._best_rate = 0.0  # tokens a second
        self.at_s = 0.0

    def is_step(self, text: str) -> bool:
        """Fold one row in; says whether it reports a step of training."""
        shape = steps.shape_of(lines.shape_key(text))
        if shape is None or shape.kind != "train":
            return False
        if not self._typical_s and shape.step_s is None:
            return True  # no row of this shape moves the time
        step, step_s, rate = shape.pace(text)
        if step is None or step != self._step:  # else another rank or model tells of the same step
            num_steps = step - self._step if step is not None and self._step is not None else 0
            self.at_s += max(num_steps, 1 if self._has_stepped else 0) * (step_s or self._by_rate(rate))
        self._step, self._has_stepped = step, True
        return True

    def _by_rate(self, rate: float | None) -> float:
        """A usual step's time, or as much more as fewer tokens a second make of it."""
        if not rate:
            return self._typical_s
        self._best_rate = max(self._best_rate, rate)
        return self._typical_s * self._best_rate / rate


def _measure(material: Material, cut: Cut | None) -> _LogEnd:
    pace, last = _pace(material), None
    for index, row in enumerate(UniformRows(rows(material, cut))):
        if pace.is_step(row.text):
            last = index
    return _LogEnd(pace.at_s, last)


def _pace(material: Material) -> _Pace:
    return _Pace(float(material.context.get("typical_step_s") or 0.0))


def _log(material: Material, looked_at: UniformRows, last_line: float, end: _LogEnd) -> Iterator[Line]:
    """The log's rows with their times."""
    pace = _pace(material)
    age = material.context.get("since_last_step_s")
    since_line = float(material.context.get("since_last_line_s") or 0.0)
    gap = max(float(age) - since_line, 0.0) if age is not None else 0.0
    begin = last_line - (end.total_s or 0.0)
    for index, row in enumerate(looked_at):
        pace.is_step(row.text)
        earlier = gap if end.last_step is None or index <= end.last_step else 0.0
        time = begin + pace.at_s - earlier
        yield row if time == row.time else Line(time, *row[1:])  # quicker than _replace


def rows(material: Material, cut: Cut | None = None) -> Iterator[Line]:
    """The log's rows, all at one time."""
    state = lines.LineState(columns=material.columns)
    for piece in material.pieces(cut):
        state, found = lines.split(state, piece, 0.0)
        yield from found
    yield from lines.flush(state, 0.0)[1]


# --- samples ---------------------------------------------------------------------------------------


def _samples(material: Material) -> Iterator[Sample]:
    if material.smi_csv is not None:
        yield from _polled(material.smi_csv, str(material.context.get("csv_columns") or ""))
    if material.smi_text is not None:
        answers = smi_text.series(material.smi_text, POLL_S)
        later = _poll_time(material) - (answers[-1].time or 0.0)
        for answer in answers:
            problem = answer.problem or _status(material.context) if not answer.gpus else answer.problem
            at = (answer.time or 0.0) + later
            yield Sample(at, answer.gpus, gpu_problem=problem, gpu_processes=answer.processes)
    elif material.smi_csv is None and _status(material.context):
        yield Sample(NOW, gpu_problem=_status(material.context))


def _status(known: dict[str, Any]) -> str:
    """What nvidia-smi's exit status alone says, where it printed nothing of use."""
    if known.get("nvidia_smi_timeout"):
        return smi.NO_ANSWER
    return _STATUSES.get(known.get("nvidia_smi_rc", 0), "nvidia-smi failed") if known.get("nvidia_smi_rc") else ""


def _poll_time(material: Material) -> float:
    polls = list(smi.polls(material.smi_csv or ""))
    return polls[-1].time or NOW if polls else NOW


def _polled(text: str, columns: str) -> Iterator[Sample]:
    polls = list(smi.polls(text, tuple(filter(None, columns.split(",")))))
    if not polls:
        yield Sample(NOW, gpu_problem=smi.NO_ANSWER if not text.strip() else text.strip().splitlines()[0])
    for index, poll in enumerate(polls):
        time = poll.time if poll.time is not None else NOW - POLL_S * (len(polls) - 1 - index)
        yield Sample(time, poll.gpus, gpu_problem=poll.problem)


def _processes(known: dict[str, Any], since: float, now: float) -> Iterator[Sample]:
    """Processor time as two samples of the process tree would show it."""
    cores = known.get("cpu_busy_cores")
    if cores is None or known.get("proc") == "gone":
        return
    yield Sample(since, process=ProcessSample(1, "S", 0.0))
    yield Sample(now, process=ProcessSample(1, "R" if cores else "S", float(cores) * max(now - since, 1.0)))


# --- what is known beforehand ----------------------------------------------------------------------


def context_of(material: Material, found: Stream) -> watcher.Context:
    """What a watcher may know beforehand, with the ages at the first event of what no event shows."""
    known = material.context
    line_s = None if found.has_log else known.get("since_last_line_s")
    step_s = known.get("since_last_step_s", line_s)
    span_s = found.now - found.first
    return watcher.Context(
        compile_expected=known.get("compile_expected"),
        cudagraphs_expected=known.get("cudagraphs_expected"),
        gpus=tuple(known.get("gpus") or ()),
        gpu_bus_ids=tuple(known.get("gpu_bus_ids") or ()),
        world_size=known.get("world_size"),
        baseline=Baseline(step_s=known.get("expected_step_s")),
        nccl_timeout_s=known.get("nccl_timeout_s"),
        pid=known.get("pid"),
        typical_step_s=known.get("typical_step_s"),
        seen_line_s=None if line_s is None else line_s - span_s,
        seen_step_s=None if step_s is None else step_s - span_s,
        phase=str(known.get("phase") or ""),
        warmup_done=known.get("warmup_done"),
        disk_used_pct=known.get("disk_used_pct"),
        launcher_alive=_alive(known, "launcher"),
        ranks_alive=_alive(known, "ranks"),
        rank0_alive=_alive(known, "rank0"),
        joined_midway=True,
    )


def _alive(known: dict[str, Any], name: str) -> bool | None:
    return None if known.get(name) is None else known[name] == "alive"
