"""Snapshots that leave for the operator or come from there: verbs cache-manifest, cache-pull, cache-offer, cache-push.

What comes is checked in full before it stands, and half an archive waits for the rest of it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from opsctl.agent.cache.archive import check, codec_for, is_safe_name
from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.known import ensure_trusted
from opsctl.agent.cache.live import content_digest
from opsctl.agent.cache.snapshots import (
    PART_PREFIX,
    SUFFIXES,
    archive_path,
    pick,
    pythons,
    read_snapshot,
    record_path,
)
from opsctl.agent.files import fsync_folder, write_record
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.agent.locks import FROZEN_CLIENT_WAIT_S, held
from opsctl.agent.session import Call
from opsctl.agent.uploads import receive
from opsctl.errors import CheckFailed, CommandFailed, DiskFull
from opsctl.formats.frames import CHUNK_BYTES
from opsctl.records.cache import SnapshotRecord
from opsctl.records.call import from_json, to_json

_ID = re.compile(r"\d{8}-([0-9a-f]{8})-([0-9a-f]{12})\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SPARE_BYTES = 2 << 20


# --- to the operator -----------------------------------------------------------------------------------


def manifest(call: Call) -> dict[str, Any]:
    """The manifest of request["snapshot"], the name of its archive and its size."""
    record = pick(call.home, call.request["snapshot"])
    archive = archive_path(call.home, record.snapshot_id)
    assert archive is not None, "pick() returns snapshots whose archive is there"
    return {"record": to_json(record), "archive": archive.name, "num_bytes": archive.stat().st_size}


def pull(call: Call) -> dict[str, Any]:
    """Send the archive of request["snapshot"] from request["offset"] on."""
    archive = archive_path(call.home, call.request["snapshot"])
    if archive is None:
        raise CheckFailed(f"snapshot {call.request['snapshot']} is gone", hint="it was pruned in the meantime")
    with archive.open("rb", buffering=0) as file:
        file.seek(int(call.request["offset"]))
        while data := file.read(CHUNK_BYTES):
            call.session.raw("data", data)
    return {}


# --- from the operator ---------------------------------------------------------------------------------


def offer(call: Call) -> dict[str, Any]:
    """Whether the offered snapshot is welcome, is there already, and how much of its archive came before.

    Raises CheckFailed for a manifest that is wrong in itself, or not known here (unless request["trust"]).
    """
    call.home.ensure()
    record, _ = _offered(call)
    if read_snapshot(call.home, record.snapshot_id) is not None:
        archive = archive_path(call.home, record.snapshot_id)
        return {"is_there": True, "have_bytes": 0, "archive": str(archive)}
    part = _part(call.home, record)
    return {"is_there": False, "have_bytes": part.stat().st_size if part.exists() else 0, "archive": ""}


def _offered(call: Call) -> tuple[SnapshotRecord, str]:
    try:
        record = from_json(SnapshotRecord, call.request["record"])
        problem = manifest_problem(record, call.request["suffix"])
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise CheckFailed(f"this is no manifest of a snapshot: {type(error).__name__}: {error}") from None
    if problem:
        raise CheckFailed(f"the manifest is wrong: {problem}", hint="pull the snapshot again from where it was made")
    ensure_trusted(call.home, record, trust=bool(call.request.get("trust", False)), operator=call.operator)
    return record, call.request["suffix"]


def manifest_problem(record: SnapshotRecord, suffix: str) -> str:
    """What makes a manifest no manifest of ours, "" if nothing does; pure."""
    named = _ID.match(record.snapshot_id)
    if named is None:
        return f"{record.snapshot_id!r} is no snapshot's name"
    if suffix not in SUFFIXES:
        return f"{suffix!r} is no archive's suffix"
    if not _SHA256.match(record.archive_sha256) or not all(map(_SHA256.match, record.files.values())):
        return "a hash in it is no sha256"
    if unsafe := next((name for name in record.files if not is_safe_name(name)), ""):
        return f"it names a file that leads elsewhere: {unsafe!r}"
    if not CacheKey(record.key).digest.startswith(named[1]):
        return "its name belongs to another key"
    if not content_digest(record.files).startswith(named[2]) or record.num_files != len(record.files):
        return "its name belongs to another content"
    return ""


def _part(home: Home, record: SnapshotRecord) -> Path:
    return home.snapshots / f"{PART_PREFIX}{record.archive_sha256}.part"


def push(call: Call) -> dict[str, Any]:
    """Take the rest of an archive from request["offset"] on; it stands once all of it is checked.

    Raises CheckFailed where archive or files are not those of the manifest, DiskFull, MissingTool (nothing reads it).
    """
    record, suffix = _offered(call)
    part = _part(call.home, record)
    lock = call.home.locks / f"cache-push-{record.archive_sha256[:12]}.lock"
    with held(lock, operator=call.operator, why=f"push of {record.snapshot_id}", wait_s=FROZEN_CLIENT_WAIT_S):
        if (stands := archive_path(call.home, record.snapshot_id)) and read_snapshot(call.home, record.snapshot_id):
            return {"archive": str(stands)}  # another push was quicker
        _receive(call, part)
        archive = call.home.snapshots / f"{record.snapshot_id}{suffix}"
        _check(call, record, part, archive)
        write_record(record_path(call.home, record.snapshot_id), record)
        part.replace(archive)  # the archive makes the snapshot stand: a record alone is none
        fsync_folder(archive.parent)
    return {"archive": str(archive)}


def _receive(call: Call, part: Path) -> None:
    offset, total = int(call.request["offset"]), int(call.request["num_bytes"])
    free = shutil.disk_usage(part.parent).free
    if free < total - offset + _SPARE_BYTES:
        raise DiskFull(
            f"the archive needs {(total - offset) / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free",
            hint="free space on the target, then push again",
        )
    if offset > (part.stat().st_size if part.exists() else 0):
        raise CommandFailed("what another push had brought is gone", hint="push again: it begins anew")
    receive(call, part, "pushing", start=offset, total=total)  # what another push sent behind it comes again


def _check(call: Call, record: SnapshotRecord, part: Path, archive: Path) -> None:
    """Hold archive and files against the manifest; what does not hold is removed."""
    call.session.progress(f"checking {archive.name}")
    codec = codec_for(archive, pythons(call.home))
    limit = int(record.size_mib * 2**20) + (1 << 20)

    def told(done: int, total: int) -> None:
        call.session.progress(f"checking {archive.name}", done=done, total=total)

    try:
        if digest(part) != record.archive_sha256:
            raise CheckFailed(
                f"the archive of {record.snapshot_id} is not the one of its manifest: damaged or cut short",
                hint="nothing of it was kept; pull it again, then push",
            )
        check(part, record.files, codec, limit_bytes=limit, told=told)
    except (CheckFailed, CommandFailed):
        part.unlink()
        raise
