"""Snapshots that stand: their files, their records, and which one is meant. Reads only."""

from __future__ import annotations

import difflib
from pathlib import Path

from opsctl.agent.addresses import meant
from opsctl.agent.cache.key import CacheKey, differences
from opsctl.agent.env.layout import active
from opsctl.agent.files import read_record
from opsctl.agent.home import Home
from opsctl.errors import CheckFailed, UsageError
from opsctl.records.cache import Snapshot, SnapshotRecord

SUFFIXES = (".tar.zst", ".tar.gz")
PART_PREFIX = ".incoming-"  # of archives that are being pushed


def record_path(home: Home, snapshot_id: str) -> Path:
    """Where the manifest of this snapshot lies."""
    return home.snapshots / f"{snapshot_id}.json"


def archive_path(home: Home, snapshot_id: str) -> Path | None:
    """Its archive, None if it is gone."""
    paths = (home.snapshots / f"{snapshot_id}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def read_snapshot(home: Home, snapshot_id: str) -> SnapshotRecord | None:
    """The snapshot's record, or None where record or archive is missing."""
    if archive_path(home, snapshot_id) is None:
        return None
    return read_record(SnapshotRecord, record_path(home, snapshot_id))


def all_snapshots(home: Home) -> list[SnapshotRecord]:
    """Every snapshot that stands, newest first."""
    ids = [path.name.removesuffix(".json") for path in home.snapshots.glob("*.json")] if home.snapshots.is_dir() else []
    found = [record for snapshot_id in ids if (record := read_snapshot(home, snapshot_id)) is not None]
    return sorted(found, key=lambda record: record.created, reverse=True)


def summary(home: Home, record: SnapshotRecord, current: CacheKey | None) -> Snapshot:
    """The snapshot without its list of files."""
    archive = archive_path(home, record.snapshot_id)
    return Snapshot(
        snapshot_id=record.snapshot_id,
        created=record.created,
        key=record.key,
        num_files=record.num_files,
        size_mib=record.size_mib,
        path=str(archive or ""),
        archive_mib=round(archive.stat().st_size / 2**20, 2) if archive else 0.0,
        fits=current is not None and current.fields == record.key,
        warmed=record.warmed,
    )


def pythons(home: Home) -> tuple[str, ...]:
    """Pythons that may have the zstandard library: the active environment's."""
    paths = active(home)
    return (str(paths.python),) if paths else ()


def choose(home: Home, snapshot_id: str, key: CacheKey) -> SnapshotRecord:
    """The snapshot of this id, or of a unique beginning of it; "" is the newest that fits the key."""
    if snapshot_id:
        return pick(home, snapshot_id)
    found = all_snapshots(home)
    fitting = [record for record in found if record.key == key.fields]
    if fitting:
        return fitting[0]
    raise _none_fits(found, key)


def pick(home: Home, snapshot_id: str) -> SnapshotRecord:
    """The snapshot of this id, or of a unique beginning of it; raises UsageError naming the nearest."""
    found = {record.snapshot_id: record for record in all_snapshots(home)}
    if name := meant(snapshot_id, list(found), noun="snapshots"):
        return found[name]
    near = difflib.get_close_matches(snapshot_id, found, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`opsctl cache list` shows what stands"
    raise UsageError(f"no snapshot {snapshot_id!r} on the target", hint=hint)


def _none_fits(found: list[SnapshotRecord], key: CacheKey) -> CheckFailed:
    if not found:
        return CheckFailed("there is no snapshot on the target", hint="`opsctl cache snapshot` takes one")
    why = "\n".join(differences(key.fields, found[0].key))
    return CheckFailed(
        f"none of {len(found)} snapshots fits; the newest, {found[0].snapshot_id}, differs:\n{why}",
        hint="a cache only helps where all of this is equal; prewarm here instead",
    )


def saved_as(home: Home, key: dict[str, str], content: str) -> SnapshotRecord | None:
    """The snapshot of this key that has exactly this content."""
    for record in all_snapshots(home):
        if record.key == key and record.snapshot_id.endswith(f"-{content[:12]}"):
            return record
    return None
