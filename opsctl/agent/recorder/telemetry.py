"""telemetry.jsonl: every sample of the last quarter of an hour, and 10 s aggregates of what is older."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import BinaryIO

from opsctl.agent.recorder.log import AppendFile
from opsctl.records.call import from_json, to_json
from opsctl.records.events import GpuSample, Sample

KEEP_S = 900.0
ROLL_PERIOD_S = 300.0
BUCKET_S = 10.0
OLD_LIMIT_BYTES = 8 << 20
_HIGHEST = {"used_mib", "temperature_c"}  # what a mean would hide; all other numbers are means


def row(sample: Sample) -> bytes:
    """One row of the file: what is unknown or empty is left out."""
    return json.dumps(_known(to_json(sample)), separators=(",", ":")).encode() + b"\n"


def _known(value: object) -> object:
    if isinstance(value, dict):
        return {name: _known(one) for name, one in value.items() if one is not None and one not in ("", [])}
    if isinstance(value, list):
        return [_known(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def read_rows(path: Path) -> Iterator[Sample]:
    """The samples in a file, oldest first; a row cut by a full disk is left out."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError):  # cut in the middle
                yield from_json(Sample, json.loads(line))


def aggregate(samples: Iterable[Sample], bucket_s: float) -> Iterator[Sample]:
    """One sample a bucket of time: means, but the highest memory and temperature, and the newest of the rest."""
    bucket: list[Sample] = []
    for sample in samples:
        if bucket and sample.time // bucket_s != bucket[0].time // bucket_s:
            yield _merged(bucket)
            bucket = []
        bucket.append(sample)
    if bucket:
        yield _merged(bucket)


def _merged(bucket: Sequence[Sample]) -> Sample:
    last = bucket[-1]
    by_index: dict[int, list[GpuSample]] = {}
    for sample in bucket:
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
    gpus = tuple(_merged_gpu(series) for _, series in sorted(by_index.items()))
    problem = next((one.gpu_problem for one in reversed(bucket) if one.gpu_problem), "")
    return replace(last, gpus=gpus, gpu_problem=problem)


def _merged_gpu(series: Sequence[GpuSample]) -> GpuSample:
    changes: dict[str, float] = {}
    for name in (field.name for field in fields(GpuSample)):
        values = [value for gpu in series if isinstance(value := getattr(gpu, name), float)]
        if values:
            changes[name] = max(values) if name in _HIGHEST else sum(values) / len(values)
    return replace(series[-1], **changes)  # type: ignore[arg-type]  # only the fields that hold a float


class Telemetry:
    """Appends samples, and every few minutes moves what is old into aggregates; both files stay bounded."""

    def __init__(self, path: Path, old_path: Path) -> None:
        self._path = path
        self._old_path = old_path
        self._file = AppendFile(path)
        self._oldest: float | None = None
        self._bucket_s = BUCKET_S

    def append(self, sample: Sample) -> None:
        """Add a sample."""
        self._file.append(row(sample))
        self._oldest = sample.time if self._oldest is None else self._oldest
        if sample.time - self._oldest > KEEP_S + ROLL_PERIOD_S:
            with contextlib.suppress(OSError):  # no space to roll: the file grows until there is some
                self._roll(sample.time - KEEP_S)
            self._oldest = sample.time - KEEP_S

    def _roll(self, cutoff: float) -> None:
        part = self._path.with_name(self._path.name + ".part")
        with part.open("wb") as kept, self._old_path.open("ab") as old:
            for sample in aggregate(self._before(cutoff, kept), self._bucket_s):
                old.write(row(sample))
        part.replace(self._path)
        self._file.close()
        self._file = AppendFile(self._path)
        if self._old_path.stat().st_size > OLD_LIMIT_BYTES:
            self._coarsen()

    def _before(self, cutoff: float, kept: BinaryIO) -> Iterator[Sample]:
        """The samples older than `cutoff`; the others go to `kept`."""
        for sample in read_rows(self._path):
            if sample.time < cutoff:
                yield sample
            else:
                kept.write(row(sample))

    def _coarsen(self) -> None:
        """Half as many rows in the aggregates, and from now on twice as long ones."""
        self._bucket_s *= 2
        part = self._old_path.with_name(self._old_path.name + ".part")
        with part.open("wb") as file:
            for sample in aggregate(read_rows(self._old_path), self._bucket_s):
                file.write(row(sample))
        part.replace(self._old_path)

    def close(self) -> None:
        """Bring everything to the disk."""
        self._file.close()

    def retry(self) -> None:
        """Try again to write what waits for space."""
        self._file.retry()
