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
    conditions: dict[str, str] = field(default_factory=dict)  # recipe, sources, command ... under which it was warmed


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
    notes: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class WarmthCheck:
    """What a job's prewarm found in a copy of the live cache; `doubts` is () where nothing at all was compiled."""

    job: str
    doubts: tuple[str, ...]
    seconds: float
    cold_s: float | None
    num_files: int  # of the cache that was checked
    report: dict[str, Any] = field(default_factory=dict)
    cache_dir: str = ""
    run_id: str = ""

    @property
    def is_warm(self) -> bool:
        """Whether the check proves the cache warm for this job."""
        return not self.doubts


@dataclass(frozen=True)
class Difference:
    """One named value on both sides of a comparison; "" where a side has none."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class CacheDiff:
    """Two caches held against each other: keys field by field, files by content."""

    a: str
    b: str
    fields: tuple[Difference, ...]  # of the keys, only those that differ
    warmed: tuple[Difference, ...]  # under which conditions each job's were warmed, only those that differ
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[str, ...]
    num_same: int
    schema: int = SCHEMA

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same files for the same key."""
        return not (self.fields or self.only_a or self.only_b or self.changed)


@dataclass(frozen=True)
class CacheExplanation:
    """Why a cache does or does not help a job here: `a` is here and now, `b` what the cache was made for."""

    subject: str  # the snapshot, or the live cache
    job: str  # "" where none was asked for
    num_files: int
    fields: tuple[Difference, ...]  # of the key, all of them
    conditions: tuple[Difference, ...]  # only those that differ
    was_warmed: bool  # a prewarm of this job is recorded in it
    schema: int = SCHEMA

    @property
    def fits(self) -> bool:
        """Whether environment and machine are those that it was made for."""
        return all(one.a == one.b for one in self.fields)

    @property
    def matches(self) -> bool:
        """Whether it fits, holds something, and was warmed for this job under the same conditions."""
        return self.fits and self.num_files > 0 and (not self.job or (self.was_warmed and not self.conditions))


@dataclass(frozen=True)
class PruneItem:
    """One thing that a prune looked at."""

    kind: str  # snapshot, live, aside, part
    name: str
    size_mib: float
    why: str


@dataclass(frozen=True)
class PruneOutcome:
    """What a prune removed (or would, in a dry run) and what it kept, each with the reason."""

    removed: tuple[PruneItem, ...]
    kept: tuple[PruneItem, ...]
    is_dry_run: bool
    schema: int = SCHEMA


@dataclass(frozen=True)
class Exchanged:
    """A snapshot that was brought to a target or fetched from one."""

    snapshot_id: str
    archive: str  # where it lies now
    archive_mib: float
    is_new: bool  # False: it was there already
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartCache:
    """What a starting run finds in its live cache."""

    notes: tuple[str, ...] = ()
    is_warm_expected: bool = False  # a prewarm of this job under these conditions filled it
    restored: str = ""  # the snapshot that was put into an empty live cache
