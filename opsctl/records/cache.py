"""Records of compile caches: live ones, snapshots, and what warming and restoring came to. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from opsctl.records.call import SCHEMA


@dataclass(frozen=True)
class SnapshotRecord:
    """<id>.json beside an archive: what it holds and where it fits."""

    snapshot_id: str
    created: float
    key: dict[str, str]  # what torch's own cache keys separate
    num_files: int
    size_mib: float  # unpacked
    archive_sha256: str
    files: dict[str, str] = field(default_factory=dict)  # relative path -> sha256
    warmed: dict[str, Any] = field(default_factory=dict)  # recipe, functions, counters of the prewarm
    schema: int = SCHEMA


@dataclass(frozen=True)
class Warmed:
    """What one job's prewarm left in a live cache; kept beside it, and in every snapshot of it."""

    job: str
    time: float
    seconds: float
    cold_s: float | None  # the last prewarm that had to compile; None if none was seen
    num_new_files: int  # that this prewarm added; 0 when all was there
    is_warm: bool | None  # as the job itself says; None if it says nothing
    report: dict[str, Any] = field(default_factory=dict)  # the job's own counters
    run_id: str = ""
    cache_dir: str = ""


@dataclass(frozen=True)
class LiveCache:
    """One live cache folder."""

    key: str
    path: str
    fields: dict[str, str]
    num_files: int
    size_mib: float
    is_current: bool  # of the active environment on this machine
    warmed: tuple[Warmed, ...] = ()
    snapshot_id: str = ""  # of the content that lies there now, "" if it is not saved


@dataclass(frozen=True)
class Snapshot:
    """One snapshot without its list of files."""

    snapshot_id: str
    created: float
    key: dict[str, str]
    num_files: int
    size_mib: float
    path: str  # of its archive
    archive_mib: float
    fits: bool  # the active environment on this machine
    warmed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheList:
    """What stands on the target."""

    live: tuple[LiveCache, ...]
    snapshots: tuple[Snapshot, ...]
    schema: int = SCHEMA


@dataclass(frozen=True)
class SnapshotOutcome:
    """How a snapshot ended: it stands, newly made or from before."""

    snapshot: Snapshot
    is_new: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class RestoreOutcome:
    """How a restore ended: the live cache holds the snapshot's files."""

    snapshot_id: str
    path: str
    num_files: int
    size_mib: float
    seconds: float
    is_new: bool  # False: it held them already
    kept_aside: str = ""  # where the replaced cache lies, if no snapshot has its content
    notes: tuple[str, ...] = ()
