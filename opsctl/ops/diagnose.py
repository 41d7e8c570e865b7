"""Says one verdict about files that anyone may have: a log, nvidia-smi's output, kernel rows, what is known besides.

The same folds as a live run's: the files are turned into the events that a recorder would have seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from opsctl.detect import lines, smi, smi_text, steps, watcher
from opsctl.errors import ConfigError
from opsctl.records.events import End, Event, Line, ProcessSample, Sample, Tick
from opsctl.records.verdict import Verdict

NOW = 2_000_000_000.0  # any moment: only differences count
POLL_S = 5.0  # between polls that carry no times
PANE_COLUMNS = 80
_WHOLE = 1 << 30
_STATUSES = {  # from nvidia-smi's manual
    9: "nvidia-smi: the driver is not loaded",
    10: "nvidia-smi: the kernel found an interrupt problem with a GPU",
    12: "nvidia-smi: the NVML library is not there",
    15: "nvidia-smi: the GPU is lost",
    18: "nvidia-smi: driver/library version mismatch",
    124: smi.NO_ANSWER,
}

Cut = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True)
class Material:
    """What there is to judge; absent parts are None. `context` has the keys of the watch cases' context."""

    log: bytes | None = None
    columns: int = 0  # width of the pane that cut the log's rows; 0 = none did
    smi_csv: str | None = None
    smi_text: str | None = None
    dmesg: str | None = None
    context: dict[str, Any] = field(default_factory=dict)


def diagnose_case(folder: Path) -> Verdict:
    """The verdict on a folder in the format of the watch cases; raises ConfigError for one that is none."""
    return diagnose(read_case(folder))


def diagnose_files(
    log: Path | None = None, *, smi: Path | None = None, dmesg: Path | None = None, context: Path | None = None
) -> Verdict:
    """The verdict on single files; the log's form is found out. Raises ConfigError for a context that is no mapping."""
    raw = log.read_bytes() if log else None
    answer = _text(smi)
    is_csv = answer is not None and bool(smi_rows(answer))
    known = _mapping(context) if context else {}
    return diagnose(
        Material(
            raw,
            guess_columns(raw or b""),
            answer if is_csv else None,
            None if is_csv else answer,
            _text(dmesg),
            known.get("context", known),
        )
    )


def read_case(folder: Path) -> Material:
    """The material in a case's folder."""
    case = _mapping(folder / "case.yaml")
    log = folder / "log.txt"
    form = str(case.get("log_form", "joined"))
    return Material(
        log.read_bytes() if log.exists() else None,
        PANE_COLUMNS if form == "pane80" or form.startswith("tail") else 0,
        _text(folder / "smi.csv"),
        _text(folder / "smi.txt"),
        _text(folder / "dmesg.txt"),
        dict(case.get("context") or {}),
    )


def diagnose(material: Material, *, cut: Cut = lambda data: (data,)) -> Verdict:
    """The verdict on `material`; `cut` says into which pieces the log is fed, which changes nothing."""
    stream = events(material, cut=cut)
    context = _aged(context_of(material), material.context, stream)
    state = watcher.start(context, stream[0].time)
    for event in stream:
        state, _ = watcher.observe(state, event)
    return watcher.judge(state)


def context_of(material: Material) -> watcher.Context:
    """What a watcher may know beforehand."""
    known = material.context
    return watcher.Context(
        compile_expected=known.get("compile_expected"),
        cudagraphs_expected=known.get("cudagraphs_expected"),
        gpus=tuple(known.get("gpus") or ()),
        gpu_bus_ids=tuple(known.get("gpu_bus_ids") or ()),
        world_size=known.get("world_size"),
        baseline=watcher.Baseline(step_s=known.get("expected_step_s")),
        nccl_timeout_s=known.get("nccl_timeout_s"),
        pid=known.get("pid"),
        typical_step_s=known.get("typical_step_s"),
        phase=str(known.get("phase", "")),
        warmup_done=known.get("warmup_done"),
        disk_used_pct=known.get("disk_used_pct"),
        launcher_alive=_alive(known, "launcher"),
        ranks_alive=_alive(known, "ranks"),
        rank0_alive=_alive(known, "rank0"),
        joined_midway=True,
    )


def _aged(context: watcher.Context, known: dict[str, Any], stream: list[Event]) -> watcher.Context:
    """With the ages, at the first event, of the newest row and step, where no event shows them."""
    has_log = any(isinstance(event, Line) and event.source == "log" for event in stream)
    line_s = None if has_log else known.get("since_last_line_s")
    step_s = known.get("since_last_step_s", line_s)
    span_s = stream[-1].time - stream[0].time
    return replace(
        context,
        seen_line_s=None if line_s is None else line_s - span_s,
        seen_step_s=None if step_s is None else step_s - span_s,
    )


def _alive(known: dict[str, Any], name: str) -> bool | None:
    return None if name not in known else known[name] == "alive"


# --- the events ------------------------------------------------------------------------------------


def events(material: Material, *, cut: Cut = lambda data: (data,)) -> list[Event]:
    """What a recorder would have seen, in order of time; the last event is the present moment."""
    known = material.context
    samples = list(_samples(material))
    now = samples[-1].time if samples else NOW
    last_line = now - float(known.get("since_last_line_s") or 0.0)
    found: list[Event] = list(_log(material, last_line, cut))
    if not found:
        found.append(Tick(last_line))
    found += [Line(last_line, row, source="kernel") for row in (material.dmesg or "").splitlines()]
    found += [*samples, *_processes(known, last_line, now)]
    found.sort(key=lambda event: event.time)
    return [*found, _last(known, now)]


def _last(known: dict[str, Any], now: float) -> Event:
    if known.get("proc") == "gone":
        return End(now, exit_code=known.get("exit_code"))
    return Tick(now)


def _log(material: Material, last_line: float, cut: Cut) -> Iterator[Line]:
    """The log's rows with times: the log has none, so they follow from the steps' own numbers."""
    rows = _rows(material, cut)
    typical = float(material.context.get("typical_step_s") or 0.0)
    offsets, last_step = _offsets(rows, typical)
    age = material.context.get("since_last_step_s")
    since_line = float(material.context.get("since_last_line_s") or 0.0)
    gap = max(float(age) - since_line, 0.0) if age is not None else 0.0
    for index, row in enumerate(rows):
        earlier = gap if last_step is None or index <= last_step else 0.0
        yield replace(row, time=last_line - (offsets[-1] - offsets[index]) - earlier)


def _rows(material: Material, cut: Cut) -> list[Line]:
    state = lines.LineState(columns=material.columns)
    rows: list[Line] = []
    for piece in cut(material.log or b""):
        state, found = lines.split(state, piece, 0.0)
        rows += found
    return [*rows, *lines.flush(state, 0.0)[1]]


def _offsets(rows: list[Line], typical_s: float) -> tuple[list[float], int | None]:
    """Seconds from the first row to each, and the index of the last row that reports a step."""
    at, step, last = 0.0, None, None
    offsets: list[float] = []
    for index, row in enumerate(rows):
        found = steps.parse(row.text)
        if found is not None and found.kind == "train":
            num_steps = found.step - step if found.step is not None and step is not None else 0
            at += max(num_steps, 1 if last is not None else 0) * (found.step_s or typical_s)
            step, last = found.step, index
        offsets.append(at)
    return offsets, last


def smi_rows(text: str) -> list[smi.Poll]:
    """The polls in a text, if it is nvidia-smi's CSV at all."""
    return [poll for poll in smi.polls(text) if poll.gpus]


def _samples(material: Material) -> Iterator[Sample]:
    if material.smi_csv is not None:
        yield from _polled(material.smi_csv, str(material.context.get("csv_columns") or ""))
    if material.smi_text is not None:
        answer = smi_text.parse(material.smi_text)
        problem = answer.problem or _status(material.context) if not answer.gpus else answer.problem
        yield Sample(_poll_time(material), answer.gpus, gpu_problem=problem, gpu_processes=answer.processes)
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


# --- files -----------------------------------------------------------------------------------------


def guess_columns(log: bytes) -> int:
    """The width at which rows were cut hard, 0 where they were not: many rows of exactly the greatest width."""
    rows = log[:_WHOLE].decode("utf-8", "replace").splitlines()
    if any("\r" in row or "\x1b" in row for row in rows[:200]) or len(rows) < 4:
        return 0
    widths = Counter(lines.display_width(row) for row in rows)
    widest = max(widths)
    return widest if widest >= 40 and widths[widest] >= 2 and widest in (80, 100, 120, 132, 160, 200, 240) else 0


def _text(path: Path | None) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path is not None and path.exists() else None


def _mapping(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no mapping")
    return value
