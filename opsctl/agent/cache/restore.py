"""`cache-restore`: a snapshot's files back into the live cache, checked, beside, then renamed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from opsctl.agent.cache.archive import codec_for, unpack
from opsctl.agent.cache.key import CacheKey, differences
from opsctl.agent.cache.known import ensure_trusted
from opsctl.agent.cache.live import (
    LivePaths,
    content_digest,
    key_for,
    listing,
    listing_digest,
    live_of,
)
from opsctl.agent.cache.portable import place, portable_digests
from opsctl.agent.cache.snapshot import cache_lock, is_saved, runs_in
from opsctl.agent.cache.snapshots import archive_path, choose, pythons
from opsctl.agent.files import folder_mode, fsync_folder, remove, write_record
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.session import Call
from opsctl.errors import Busy, CheckFailed, DiskFull
from opsctl.records.cache import RestoreOutcome, SnapshotRecord

_SPARE_BYTES = 2 << 20


def restore(call: Call) -> Any:
    """The RestoreOutcome of request["snapshot"] ("" = the newest that fits); `replace` allows a warm live cache."""
    home, request = call.home, call.request
    home.ensure()
    key = key_for(home, env=request.get("env", ""), uses_env=request.get("uses_env", True))
    record = choose(home, request.get("snapshot", ""), key)
    if wrong := differences(key.fields, record.key):
        raise CheckFailed(
            f"snapshot {record.snapshot_id} does not fit:\n" + "\n".join(wrong),
            hint="a cache only helps where all of this is equal; prewarm here instead",
        )
    ensure_trusted(home, record, trust=bool(request.get("trust", False)), operator=call.operator)
    return bring_back(call, record, key, replace=bool(request.get("replace", False)))


def bring_back(call: Call, record: SnapshotRecord, key: CacheKey, *, replace: bool) -> RestoreOutcome:
    """Put a snapshot that fits and is trusted in the place of the live cache, which is empty or may be replaced.

    Raises CheckFailed (damaged, or the live cache is warm), Busy, DiskFull; the live cache then is as it was.
    """
    started, home = time.monotonic(), call.home
    why = f"restore of {record.snapshot_id}"
    with held(cache_lock(home, key), operator=call.operator, why=why, wait_s=1.0) as left:
        if left:
            call.session.progress(left)
        live = live_of(home, key)
        files = listing(live.root)
        if files and content_digest(portable_digests(live.root, sorted(files), root=str(live.root))) == content_digest(
            record.files
        ):
            return _outcome(record, live, started, is_new=False)
        _refuse_warm(live, len(files), replace=replace)
        _refuse_used(home, live)
        kept = _put_in_place(call, record, key, is_saved_already=bool(is_saved(home, live, files)))
    return _outcome(record, live, started, is_new=True, kept_aside=kept)


def _outcome(
    record: SnapshotRecord, live: LivePaths, started: float, *, is_new: bool, kept_aside: str = ""
) -> RestoreOutcome:
    return RestoreOutcome(
        snapshot_id=record.snapshot_id,
        path=str(live.root),
        num_files=record.num_files,
        size_mib=record.size_mib,
        seconds=round(time.monotonic() - started, 2),
        is_new=is_new,
        kept_aside=kept_aside,
    )


def _refuse_warm(live: LivePaths, num_files: int, *, replace: bool) -> None:
    if num_files and not replace:
        raise CheckFailed(
            f"the live cache {live.root.name} is not empty: {num_files} files; nothing was changed",
            hint="`--replace` puts the snapshot in its place and keeps what is not saved aside",
        )


def _refuse_used(home: Home, live: LivePaths) -> None:
    if working := runs_in(home, live):
        raise Busy(f"run {working[0]} uses the live cache {live.root.name}", hint="wait for it, or stop it")


def _put_in_place(call: Call, record: SnapshotRecord, key: CacheKey, *, is_saved_already: bool) -> str:
    """Unpack beside and rename; returns where the old content lies if no snapshot holds it."""
    from opsctl.agent.env.space import flush  # loads ctypes: every start of a run looks in here

    home = call.home
    live = live_of(home, key)
    beside = home.live_caches / f".restore-{key.digest}"
    remove(beside)  # of one that was killed, whose lock we hold; another key's may be at work
    beside.mkdir(mode=folder_mode(home.live_caches))
    try:
        _unpack(call, record, beside)
        place(beside, record.files, root=str(live.root))
        _describe(record, LivePaths(beside), key)
        flush(beside)
        aside = _move_aside(live)
        beside.rename(live.root)
        fsync_folder(home.live_caches)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    if aside is None or (not is_saved_already and listing(aside)):
        return str(aside or "")
    shutil.rmtree(aside)
    return ""


def _move_aside(live: LivePaths) -> Path | None:
    if not live.root.exists():
        return None
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    aside = live.root.with_name(f"{live.root.name}.replaced-{moment}")
    live.root.rename(aside)
    return aside


def _unpack(call: Call, record: SnapshotRecord, beside: Path) -> None:
    home = call.home
    archive = archive_path(home, record.snapshot_id)
    assert archive is not None, "choose() returns snapshots whose archive is there"
    call.session.progress(f"checking {archive.name}")
    if digest(archive) != record.archive_sha256:
        raise CheckFailed(
            f"{archive} is damaged: its hash is not the one in its manifest",
            hint="restore another snapshot, or prewarm; the live cache is as it was",
        )
    limit = int(record.size_mib * 2**20) + (1 << 20)
    free = shutil.disk_usage(home.live_caches).free
    if free < limit + _SPARE_BYTES:
        raise DiskFull(
            f"the snapshot needs {(limit + _SPARE_BYTES) / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free",
            hint="free space on the target, then try again; the live cache is as it was",
        )
    codec = codec_for(archive, pythons(home))

    def told(done: int, total: int) -> None:
        call.session.progress("unpacking", done=done, total=total)

    unpack(archive, beside, record.files, codec, limit_bytes=limit, told=told)


def _describe(record: SnapshotRecord, beside: LivePaths, key: CacheKey) -> None:
    write_record(beside.key, key.fields)
    write_record(beside.warmed, record.warmed)
    saved = {"snapshot_id": record.snapshot_id, "listing": listing_digest(listing(beside.root))}
    write_record(beside.last_snapshot, saved)
