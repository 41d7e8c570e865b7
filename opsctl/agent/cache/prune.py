"""`cache-prune`: old snapshots and live caches of environments that are gone; never the only copy of anything warm."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict

from opsctl.agent import jobs
from opsctl.agent.cache.key import CacheKey, kept_key, key_without_env
from opsctl.agent.cache.live import Listing, LivePaths, all_lives, current_key, listing, read_key
from opsctl.agent.cache.snapshot import cache_lock, is_saved, take
from opsctl.agent.cache.snapshots import PART_PREFIX, all_snapshots, archive_path, record_path
from opsctl.agent.env.layout import standing
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.run_state import all_runs, is_live
from opsctl.agent.session import Call
from opsctl.errors import Busy
from opsctl.records.cache import PruneItem, PruneOutcome, SnapshotRecord

_PART_AGE_S = 24 * 3600.0
_ASIDE = ".replaced-"


class _Told:
    """Tells phases of a snapshot as progress of this call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def phase(self, name: str, text: str = "", *, done: float | None = None, total: float | None = None) -> None:
        self._call.session.progress(f"{name}: {text}" if text else name, done=done, total=total)


def prune(call: Call) -> PruneOutcome:
    """Keep request["keep"] snapshots a key and every cache that is in use or unsaved; remove the rest.

    request["save"]: an unsaved cache of no environment is snapshotted first, and then goes. request["dry_run"]:
    nothing is changed.
    """
    pruning = _Pruning(call, is_dry_run=bool(call.request.get("dry_run")), saves=bool(call.request.get("save")))
    pruning.lives()
    pruning.snapshots(int(call.request["keep"]))
    pruning.parts()
    return PruneOutcome(tuple(pruning.removed), tuple(pruning.kept), pruning.is_dry_run)


def keys_in_use(home: Home) -> set[str]:
    """The digests of the keys of all environments that stand, and of jobs without one; asks no environment."""
    found = (current_key(home), key_without_env(), *(kept_key(paths) for paths, _ in standing(home)))
    return {key.digest for key in found if key}


def surplus(found: list[SnapshotRecord], keep: int, needed: set[str]) -> list[SnapshotRecord]:
    """The snapshots beyond the newest `keep` of each key, those apart that something needs; newest first in; pure."""
    seen: dict[str, int] = defaultdict(int)
    old = []
    for record in found:
        digest = CacheKey(record.key).digest
        seen[digest] += 1
        if seen[digest] > keep and record.snapshot_id not in needed:
            old.append(record)
    return old


class _Pruning:
    """One prune: what it removed and kept so far, and the snapshots that must stay for it."""

    def __init__(self, call: Call, *, is_dry_run: bool, saves: bool) -> None:
        self._call, self._home = call, call.home
        self.is_dry_run, self._saves = is_dry_run, saves
        self.removed: list[PruneItem] = []
        self.kept: list[PruneItem] = []
        self._needed: set[str] = set()

    def lives(self) -> None:
        """Live caches, and what restores put aside."""
        in_use = keys_in_use(self._home)
        used = {run.spec.cache_dir for run in all_runs(self._home) if is_live(self._home.run(run.run_id))}
        for live in all_lives(self._home):
            self._live(live, is_wanted=live.root.name in in_use, is_used=str(live.root) in used)

    def _live(self, live: LivePaths, *, is_wanted: bool, is_used: bool) -> None:
        files = listing(live.root)
        kind = "aside" if _ASIDE in live.root.name else "live"
        item = PruneItem(kind, live.root.name, _mib(files), "")
        saved = is_saved(self._home, live, files)
        self._needed |= {saved} if saved else set()
        if is_wanted or is_used:
            self._keep(item, "a run uses it" if is_used else "an environment here uses it")
        elif files and not saved and not self._saves:
            self._keep(item, "no snapshot holds it; --save takes one first")
        else:
            self._drop_live(live, item, is_saved=bool(saved), is_empty=not files)

    def _drop_live(self, live: LivePaths, item: PruneItem, *, is_saved: bool, is_empty: bool) -> None:
        why = "empty" if is_empty else "saved, and no environment here uses it"
        must_save = not is_empty and not is_saved
        if must_save:
            why = "no environment here uses it; saved first"
        if not self.is_dry_run:
            try:
                self._needed |= {_save(self._call, live)} if must_save else set()
                self._delete(live)
            except Busy as error:
                self._keep(item, error.message)
                return
        self._remove(item, why)

    def _delete(self, live: LivePaths) -> None:
        with held(cache_lock(self._home, read_key(live)), operator=self._call.operator, why="cache prune"):
            shutil.rmtree(live.root)

    def snapshots(self, keep: int) -> None:
        """Snapshots beyond the newest of their key; one that a live cache relies on stays."""
        found = all_snapshots(self._home)
        old = surplus(found, keep, self._needed)
        for record in found:
            archive = archive_path(self._home, record.snapshot_id)
            assert archive is not None, "all_snapshots() returns those whose archive is there"
            item = PruneItem("snapshot", record.snapshot_id, round(archive.stat().st_size / 2**20, 2), "")
            if record not in old:
                is_needed = record.snapshot_id in self._needed
                self._keep(item, "holds a live cache" if is_needed else f"among the newest {keep} of its key")
                continue
            self._remove(item, f"older than the newest {keep} of its key")
            if not self.is_dry_run:
                archive.unlink()  # first: an archive without its record would lie there unseen
                record_path(self._home, record.snapshot_id).unlink()

    def parts(self) -> None:
        """Halves of pushes that nobody finished."""
        for part in sorted(self._home.snapshots.glob(f"{PART_PREFIX}*")):
            age_s = time.time() - part.stat().st_mtime
            item = PruneItem("part", part.name, round(part.stat().st_size / 2**20, 2), "")
            if age_s < _PART_AGE_S:
                self._keep(item, "a push of the last day may go on")
                continue
            self._remove(item, "a push that nobody finished")
            if not self.is_dry_run:
                part.unlink()

    def _keep(self, item: PruneItem, why: str) -> None:
        self.kept.append(PruneItem(item.kind, item.name, item.size_mib, why))

    def _remove(self, item: PruneItem, why: str) -> None:
        self.removed.append(PruneItem(item.kind, item.name, item.size_mib, why))


def _save(call: Call, live: LivePaths) -> str:
    """Take a snapshot of this live cache; returns its id."""
    told: jobs.Phases = _Told(call)
    return take(call.home, live.root.name, told, operator=call.operator).snapshot.snapshot_id


def _mib(files: Listing) -> float:
    return round(sum(size for size, _ in files.values()) / 2**20, 2)
