"""`env-restore`: an adopted environment back in its place, checked file by file. Overwrites nothing."""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
import shutil
import time
from pathlib import Path

from opsctl.agent.addresses import meant
from opsctl.agent.cache.archive import codec_for
from opsctl.agent.cache.snapshots import SUFFIXES, pythons
from opsctl.agent.env.adopt import record_path
from opsctl.agent.env.adopt_archive import unpack
from opsctl.agent.env.space import flush
from opsctl.agent.files import fsync_folder, read_record
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed, DiskFull, UsageError
from opsctl.records.env import AdoptedArchive, ArchiveEntry, RestoredArchive

_SPARE_BYTES = 8 << 20


def archives(call: Call) -> list[ArchiveEntry]:
    """Every adopted environment whose archive stands, newest first."""
    found = [_entry(call.home, name) for name in _known(call.home)]
    return sorted((one for one in found if one is not None), key=lambda one: one.created, reverse=True)


def _known(home: Home) -> list[str]:
    return sorted(path.stem for path in home.adopted.glob("*.json")) if home.adopted.is_dir() else []


def _entry(home: Home, archive_id: str) -> ArchiveEntry | None:
    record, archive = _read(home, archive_id)
    if record is None or archive is None:
        return None
    return ArchiveEntry(
        archive_id=record.archive_id,
        path=record.path,
        created=record.created,
        operator=record.operator,
        python=record.python,
        num_files=record.num_files,
        size_mib=record.size_mib,
        archive=str(archive),
        archive_mib=round(archive.stat().st_size / 2**20, 1),
    )


def _read(home: Home, archive_id: str) -> tuple[AdoptedArchive | None, Path | None]:
    """Record and archive of this id, each None where it is gone or cannot be read."""
    paths = [path for suffix in SUFFIXES if (path := home.adopted / f"{archive_id}{suffix}").is_file()]
    with contextlib.suppress(ValueError, TypeError):  # somebody edited it: as good as none
        return read_record(AdoptedArchive, record_path(home, archive_id)), next(iter(paths), None)
    return None, next(iter(paths), None)


def restore(call: Call) -> RestoredArchive:
    """Unpack request["archive"] at request["path"] ("" = where it lay); raises UsageError if something stands there."""
    call.home.ensure()
    with held(call.home.locks / "env-restore.lock", operator=call.operator, why="env restore", wait_s=1.0):
        return _restore(call)


def _restore(call: Call) -> RestoredArchive:
    started = time.monotonic()
    home = call.home
    record, archive = _find(home, str(call.request["archive"]))
    path = Path(str(call.request.get("path") or record.path)).expanduser().absolute()
    _refuse_taken(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.restore-*"):  # of one that was ended
        shutil.rmtree(leftover)
    call.session.progress(f"checking {archive.name}")
    if digest(archive) != record.archive_sha256:
        raise CheckFailed(f"{archive} is damaged: its hash is not the one in its manifest")
    _ensure_room(path, record)
    beside = path.with_name(f".{path.name}.restore-{os.getpid()}")

    def told(done: int, total: int) -> None:
        call.session.progress("unpacking", done=done, total=total)

    try:
        beside.mkdir(mode=0o755)
        codec = codec_for(archive, pythons(home))
        unpack(archive, beside, record.files, codec, total_bytes=int(record.size_mib * 2**20), told=told)
        flush(beside)
        beside.rename(path)
        fsync_folder(path.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    moved = (f"it lay at {record.path}: its scripts still name that place",) if str(path) != record.path else ()
    seconds = round(time.monotonic() - started, 1)
    return RestoredArchive(record.archive_id, str(path), record.num_files, record.size_mib, seconds, moved)


def _refuse_taken(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UsageError(
            f"something stands at {path}; nothing was changed", hint="move it away, or name another place with --to"
        )
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} on the target", hint="make it, or name another with --to")


def _ensure_room(path: Path, record: AdoptedArchive) -> None:
    needed, free = record.size_mib * 2**20 + _SPARE_BYTES, shutil.disk_usage(path.parent).free
    if free < needed:
        raise DiskFull(
            f"{path} will take {needed / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free",
            hint="free space there, or name another place with --to",
        )


def _find(home: Home, archive_id: str) -> tuple[AdoptedArchive, Path]:
    """The archive of this id, or of a unique beginning of it."""
    known = _known(home)
    chosen = meant(archive_id, known, noun="archives") if archive_id else ""
    if not chosen:
        near = difflib.get_close_matches(archive_id, known, n=1, cutoff=0.4)
        hint = (
            f"did you mean {near[0]}?" if near else f"there: {', '.join(known) or 'none; `opsctl env adopt` saves one'}"
        )
        raise UsageError(f"no adopted environment {archive_id!r} on the target", hint=hint)
    record, archive = _read(home, chosen)
    if record is None or archive is None:
        what = "manifest" if record is None else "archive"
        raise CheckFailed(f"the {what} of {chosen} is not in {home.adopted} any more, or cannot be read")
    return record, archive
