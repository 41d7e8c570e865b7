"""A run's folder, as its recorder left it, turned back into the events that the recorder saw. Reads files only."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from opsctl.detect import lines, watcher
from opsctl.errors import ConfigError
from opsctl.ops.material import OnRead
from opsctl.records.call import from_json
from opsctl.records.events import End, Event, Line, Sample, Tick
from opsctl.records.run import ExitRecord, RunRecord

TICK_S = 1.0
_MARK = re.compile(r"^(\d+) (\d+\.\d+)\n", re.MULTILINE)
R = TypeVar("R")


def is_run(folder: Path) -> bool:
    """Whether a run's record lies in the folder."""
    return (folder / "run.json").exists()


def record_of(folder: Path) -> RunRecord:
    """The run that the folder is of; raises ConfigError for a record that cannot be read."""
    return _record(RunRecord, folder / "run.json")


def _record(kind: type[R], path: Path) -> R:
    try:
        return from_json(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def context_of(run: RunRecord) -> watcher.Context:
    """What the recorder knew beforehand; a good run's figures lie on the target and are not at hand."""
    spec, pid = run.spec, run.job.pid if run.job else None
    return watcher.Context(compile_expected=spec.expect_compiled, gpus=spec.gpus, gpu_uuids=run.gpu_uuids, pid=pid)


def events(folder: Path, run: RunRecord, *, on_read: OnRead) -> Iterator[Event]:
    """Everything in order of time, a tick for every second, and the end; `on_read` hears how far the log was read.

    What a full disk cut off, or nobody kept, is left out; raises ConfigError for a sample or an end that is none.
    """
    last = run.created
    streams = (_log(folder, last, on_read), _metrics(folder), _samples(folder))
    for event in heapq.merge(*streams, key=lambda event: event.time):
        while event.time - last > TICK_S:
            last += TICK_S
            yield Tick(last)
        last = max(last, event.time)
        yield event
    yield from _end(folder)


def _log(folder: Path, created: float, on_read: OnRead) -> Iterator[Event]:
    """The rows of the log at the times in its index; without one, all at the moment of the run's making."""
    path = folder / "train.log"
    if not path.exists():
        return
    marks = _marks(folder / "train.log.idx") or [(0, created)]
    state = lines.LineState()
    size = path.stat().st_size
    with path.open("rb") as file:
        for (start, time), (stop, _) in zip(marks, [*marks[1:], (size, 0.0)], strict=True):
            file.seek(start)
            state, rows = lines.split(state, file.read(stop - start), time)
            yield from rows
            on_read(stop, size)
    yield from lines.flush(state, marks[-1][1])[1]


def _marks(path: Path) -> list[tuple[int, float]]:
    """Where which moment's bytes begin; a row that was cut says nothing."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [(int(offset), float(time)) for offset, time in _MARK.findall(text)]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for row in file:
            try:
                value = json.loads(row)
            except ValueError:
                continue  # cut by a full disk, or the job's own business
            if isinstance(value, dict):
                yield value


def _metrics(folder: Path) -> Iterator[Event]:
    """The rows of metrics.jsonl that name their time; what was seen of the others, nobody wrote down."""
    path = folder / "metrics.jsonl"
    for row in _rows(path) if path.exists() else ():
        if isinstance(row.get("time"), (int, float)):
            yield Line(float(row["time"]), json.dumps(row), source="metrics")


def _samples(folder: Path) -> Iterator[Event]:
    for name in ("telemetry.old.jsonl", "telemetry.jsonl"):
        path = folder / name
        for row in _rows(path) if path.exists() else ():
            yield _sample(row, path)


def _sample(row: dict[str, Any], path: Path) -> Sample:
    try:
        return from_json(Sample, row)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} holds a row that is no sample: {error}") from error


def _end(folder: Path) -> Iterator[Event]:
    path = folder / "exit.json"
    if path.exists():
        attempt = _record(ExitRecord, path).attempts[-1]
        yield End(attempt.ended, attempt.exit_code, attempt.signal, attempt.stop_requested)
