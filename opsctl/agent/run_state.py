"""What a run is doing, told from its files and /proc alone; and how runs are addressed. Changes nothing."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from opsctl.agent.files import read_record
from opsctl.agent.home import Home, RunPaths
from opsctl.agent.processes import carrying, is_alive, is_this_boot
from opsctl.errors import UsageError
from opsctl.formats.listing import ambiguous
from opsctl.records.call import from_json
from opsctl.records.events import Sample
from opsctl.records.run import ExitRecord, RunRecord, RunStatus
from opsctl.records.verdict import Verdict

_TAIL_BYTES = 1 << 16
LATEST = "latest"


def is_live(paths: RunPaths) -> bool:
    """Whether a recorder or any process of the run still works, exit record or not."""
    if paths.exit.exists():
        return False
    record = read_record(RunRecord, paths.record)
    if record is None or (record.recorder is not None and not is_this_boot(record.recorder)):
        return False
    return is_alive(record.recorder) or is_alive(record.job) or bool(carrying(record.run_id))


def status(paths: RunPaths) -> RunStatus | None:
    """The run's status, or None where the folder holds no run."""
    record = read_record(RunRecord, paths.record)
    if record is None:
        return None
    ended = read_record(ExitRecord, paths.exit)
    verdict = ended.verdict if ended else _read_verdict(paths)
    state, message = ("over", "") if ended else _state(record)
    if state in ("lost", "unwatched"):
        verdict = Verdict("unknown", "cause_unknown", evidence=(message,), step=verdict.step, phase=verdict.phase)
    log_bytes, last_output = _log(paths)
    sample = None if state == "over" else _newest_sample(paths)
    return RunStatus(record, state, verdict, message, ended, log_bytes, last_output, sample)


def _read_verdict(paths: RunPaths) -> Verdict:
    with contextlib.suppress(ValueError):  # cut by a crash of the machine: as good as none
        return read_record(Verdict, paths.verdict) or Verdict("starting")
    return Verdict("unknown", "cause_unknown")


def _state(record: RunRecord) -> tuple[str, str]:
    if is_alive(record.recorder):
        return ("running" if record.job else "starting"), ""
    if record.recorder is None:
        return "lost", "the start was cut off before the recorder came up"
    if not is_this_boot(record.recorder):
        return "lost", "the machine or its container restarted while the run was going on"
    left = carrying(record.run_id)
    if is_alive(record.job) or left:
        return "unwatched", f"the recorder died, the job still runs ({len(left)} processes); `train stop` ends it"
    return "lost", "the recorder died, and no process of the job is left"


def _log(paths: RunPaths) -> tuple[int, float | None]:
    try:
        found = paths.log.stat()
    except OSError:
        return 0, None
    return found.st_size, found.st_mtime if found.st_size else None


def last_rows(path: Path, limit: int) -> list[bytes]:
    """The last whole rows of a file, at most `limit` and at most what its last 64 KiB hold."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _TAIL_BYTES)
            file.seek(start)
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    rows = data[: data.rfind(b"\n") + 1].splitlines()
    return rows[1:][-limit:] if start else rows[-limit:]


def _newest_sample(paths: RunPaths) -> Sample | None:
    for row in reversed(last_rows(paths.telemetry, 2)):
        with contextlib.suppress(ValueError):  # cut by a full disk
            return from_json(Sample, json.loads(row))
    return None


# --- addresses -----------------------------------------------------------------------------------


def all_runs(home: Home) -> list[RunRecord]:
    """The records of all runs, newest first."""
    paths = home.runs.glob("*/run.json") if home.runs.is_dir() else iter(())
    found = [record for path in paths if (record := read_record(RunRecord, path)) is not None]
    return sorted(found, key=lambda record: record.created, reverse=True)


def find(home: Home, address: str) -> RunPaths:
    """The run that a name, a run id, a unique begin of one, or `latest` means; raises UsageError."""
    found = choose(all_runs(home), address, is_live=lambda run: is_live(home.run(run.run_id)))
    return home.run(found.run_id)


def choose(runs: Sequence[RunRecord], address: str, *, is_live: Callable[[RunRecord], bool]) -> RunRecord:
    """The one that `address` means of `runs`, which come newest first."""
    if address in ("", LATEST):
        return _latest(runs, is_live)
    found = [run for run in runs if run.run_id == address]
    found = found or [run for run in runs if run.spec.name == address][:1]
    found = found or [run for run in runs if run.run_id.startswith(address)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ambiguous(address, [run.run_id for run in found], noun="runs")
    names = list(dict.fromkeys(run.spec.name for run in runs))
    near = difflib.get_close_matches(address, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"runs there: {', '.join(names[:10]) or 'none yet'}"
    raise UsageError(f"there is no run {address!r} on this target", hint=hint)


def _latest(runs: Sequence[RunRecord], is_live: Callable[[RunRecord], bool]) -> RunRecord:
    """The newest that lives, a training run first; else the newest training run; else the newest at all."""
    live = [run for run in runs if is_live(run)]
    for group in (live, runs):
        for run in (*(run for run in group if run.spec.kind == "train"), *group):
            return run
    raise UsageError("there is no run on this target yet", hint="`opsctl train start JOB` starts one")
