"""`cache-snapshot`: a checked archive of a live cache, made beside a running compile if need be."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.cache.archive import gzip_codec, pack, zstd_codec
from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.known import remember
from opsctl.agent.cache.live import (
    Listing,
    LivePaths,
    content_digest,
    current_key,
    ensure_live,
    key_for,
    listing,
    listing_digest,
    live_of,
    read_json,
    read_key,
    read_warmed,
)
from opsctl.agent.cache.portable import make_portable
from opsctl.agent.cache.snapshots import (
    archive_path,
    pythons,
    read_snapshot,
    record_path,
    saved_as,
    summary,
)
from opsctl.agent.files import fsync_folder, remove, sweep, write_record
from opsctl.agent.hashing import digest, digests
from opsctl.agent.home import Home
from opsctl.agent.job_start import start_job
from opsctl.agent.locks import held
from opsctl.agent.main import agent_argv
from opsctl.agent.run_state import all_runs, is_live
from opsctl.agent.session import Call
from opsctl.errors import Busy, CheckFailed, DiskFull
from opsctl.records.cache import SnapshotOutcome, SnapshotRecord
from opsctl.records.call import to_json
from opsctl.records.run import RunSpec

RUN_NAME = "cache-snapshot"
_AGREE_LIMIT_S = 120.0
_AGREE_PERIOD_S = 0.2


def cache_lock(home: Home, key: CacheKey) -> Path:
    """The lock of whoever changes or saves the cache of this key."""
    return home.locks / f"cache-{key.digest}.lock"


def runs_in(home: Home, live: LivePaths) -> list[str]:
    """The ids of the runs that go on and compile into this cache."""
    users = [run.run_id for run in all_runs(home) if run.spec.cache_dir == str(live.root)]
    return [run_id for run_id in users if is_live(home.run(run_id))]


def _unchanged(home: Home, live: LivePaths, files: Listing) -> SnapshotRecord | None:
    """The last snapshot, if no file came, went or was written since."""
    last = read_json(live.last_snapshot)
    if last.get("listing") != listing_digest(files):
        return None
    return read_snapshot(home, str(last["snapshot_id"]))


def snapshot(call: Call) -> Any:
    """{"outcome": SnapshotOutcome} where nothing changed since the last one, else {"run": RunRecord} of the job."""
    key = key_for(call.home, env=call.request.get("env", ""), uses_env=call.request.get("uses_env", True))
    live = live_of(call.home, key)
    files = listing(live.root)
    if not files:
        raise CheckFailed(
            f"there is nothing to save: the live cache {key.digest} is empty",
            hint="`opsctl cache prewarm` fills it",
        )
    ensure_live(call.home, key)
    record = _unchanged(call.home, live, files)
    if record is not None:
        found = summary(call.home, record, current_key(call.home))
        return {"outcome": SnapshotOutcome(found, is_new=False), "run": None}
    with held(cache_lock(call.home, key), operator=call.operator, why="start of a cache snapshot") as left:
        if left:
            call.session.progress(left)
        # whoever holds it is named at once, rather than by a run that fails
    words = ("job", "cache-snapshot", str(call.home.root), key.digest, call.operator)
    spec = RunSpec(RUN_NAME, (*agent_argv(), *words), kind="snapshot", operator=call.operator, why="cache snapshot")
    return {"outcome": None, "run": start_job(call, spec)}


def _copy_new(live: Path, staging: Path, wanted: Listing, copied: Listing) -> None:
    """Bring `staging` up to date with `wanted`; what goes away meanwhile shows in the next listing."""
    for name in copied.keys() - wanted.keys():
        (staging / name).unlink(missing_ok=True)
        del copied[name]
    for name, facts in wanted.items():
        if copied.get(name) == facts:
            continue
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(live / name, target)
        except FileNotFoundError:
            continue
        copied[name] = facts


def copy_until_steady(live: Path, staging: Path, *, limit_s: float = _AGREE_LIMIT_S) -> Listing:
    """Copy the cache until two listings agree; raises Busy if it never holds still for that long."""
    copied: Listing = {}
    deadline = time.monotonic() + limit_s
    files = listing(live)
    while True:
        _copy_new(live, staging, files, copied)
        again = listing(live)
        if again == files == copied:
            return files
        if time.monotonic() >= deadline:
            raise Busy(
                f"the cache {live.name} did not hold still for {limit_s:g} s: something compiles into it",
                hint="try again when the run is past its warm-up",
            )
        time.sleep(_AGREE_PERIOD_S)
        files = listing(live)


def _ensure_room(home: Home, files: Listing) -> None:
    needed, free = 2 * sum(size for size, _ in files.values()), shutil.disk_usage(home.snapshots).free
    if free < needed:
        raise DiskFull(
            f"a snapshot needs up to {needed / 2**20:,.0f} MiB for a while, {free / 2**20:,.0f} MiB are free",
            hint="free space on the target, then try again; the live cache is as it was",
        )


def _write(
    home: Home, live: LivePaths, key: dict[str, str], staging: Path, hashes: dict[str, str], progress: jobs.Phases
) -> SnapshotRecord:
    """Archive the staged files aside, write the record, then put the archive in its place."""
    now = time.time()
    day = time.strftime("%Y%m%d", time.gmtime(now))
    snapshot_id = f"{day}-{live.root.name[:8]}-{content_digest(hashes)[:12]}"
    codec = zstd_codec(pythons(home)) or gzip_codec()
    archive = home.snapshots / f"{snapshot_id}{codec.suffix}"
    part = archive.with_name(f".{archive.name}.{os.getpid()}.part")

    def told(done: int, total: int) -> None:
        progress.phase("archive", archive.name, done=round(done / 2**20, 1), total=round(total / 2**20, 1))

    try:
        pack(staging, sorted(hashes), part, codec, told=told)
        record = SnapshotRecord(
            snapshot_id=snapshot_id,
            created=now,
            key=key,
            num_files=len(hashes),
            size_mib=round(sum((staging / name).stat().st_size for name in hashes) / 2**20, 3),
            archive_sha256=digest(part),
            files=hashes,
            warmed=to_json(read_warmed(live)),
        )
        write_record(record_path(home, snapshot_id), record)
        part.replace(archive)  # the archive makes the snapshot stand: a record alone is none
        fsync_folder(home.snapshots)
    finally:
        part.unlink(missing_ok=True)
    return record


def sweep_of(home: Home, key: CacheKey) -> None:
    """Remove what killed snapshots of this key left, whose lock we hold; a half that was pushed waits for the rest."""
    for pattern in (f".staging-{key.digest}", f".????????-{key.digest[:8]}-*.part"):
        for leftover in home.snapshots.glob(pattern):
            remove(leftover)
    for record in home.snapshots.glob(f"*-{key.digest[:8]}-*.json"):
        if archive_path(home, record.stem) is None:
            sweep(home.snapshots, record.name)  # not at once: a push writes its record first, too


def take(home: Home, key_digest: str, progress: jobs.Phases, *, operator: str) -> SnapshotOutcome:
    """Save the live cache of this key; one with the same content is not saved twice."""
    started = time.monotonic()
    live = LivePaths(home.live_caches / key_digest)
    key = read_key(live)
    with held(cache_lock(home, key), operator=operator, why="cache snapshot", wait_s=jobs.LOCK_WAIT_S):
        sweep_of(home, key)
        _ensure_room(home, listing(live.root))
        staging = home.snapshots / f".staging-{key.digest}"
        staging.mkdir()
        try:
            progress.phase("copy", "until the cache holds still")
            files = copy_until_steady(live.root, staging)
            make_portable(staging, files, root=str(live.root))
            progress.phase("hash", f"{len(files)} files")
            hashes = dict(digests(staging, sorted(files)))
            record = saved_as(home, key.fields, content_digest(hashes))
            is_new = record is None
            record = record or _write(home, live, key.fields, staging, hashes, progress)
            remember(home, record, operator=operator, how="made here")
        finally:
            shutil.rmtree(staging, ignore_errors=True)  # the next snapshot sweeps what is left
        write_record(live.last_snapshot, {"snapshot_id": record.snapshot_id, "listing": listing_digest(files)})
    seconds = round(time.monotonic() - started, 1)
    notes = tuple(f"run {run_id} goes on: what it compiles from now on is not in it" for run_id in runs_in(home, live))
    return SnapshotOutcome(summary(home, record, current_key(home)), is_new=is_new, seconds=seconds, notes=notes)


def main(arguments: list[str]) -> int:
    """`AGENT job cache-snapshot HOME KEY OPERATOR`."""
    root, key_digest, operator = arguments
    return jobs.run(lambda progress: take(Home.at(root), key_digest, progress, operator=operator), folder=Path.cwd())


def is_saved(home: Home, live: LivePaths, files: Listing) -> str:
    """The id of the snapshot that holds what lies in the live cache, "" for none; reads no content."""
    record = _unchanged(home, live, files)
    return record.snapshot_id if record and archive_path(home, record.snapshot_id) else ""
