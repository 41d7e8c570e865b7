"""`cache-list`: live caches and snapshots as they stand. Changes nothing."""

from __future__ import annotations

from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.live import LivePaths, all_lives, current_key, listing, read_key, read_warmed
from opsctl.agent.cache.snapshot import is_saved
from opsctl.agent.cache.snapshots import all_snapshots, summary
from opsctl.agent.home import Home
from opsctl.agent.session import Call
from opsctl.records.cache import CacheList, LiveCache


def _live(home: Home, live: LivePaths, current: CacheKey | None) -> LiveCache:
    files = listing(live.root)
    return LiveCache(
        key=live.root.name,
        path=str(live.root),
        fields=read_key(live).fields,
        num_files=len(files),
        size_mib=round(sum(size for size, _ in files.values()) / 2**20, 2),
        is_current=current is not None and live.root.name == current.digest,
        warmed=tuple(read_warmed(live).values()),
        snapshot_id=is_saved(home, live, files),
    )


def list_caches(call: Call) -> CacheList:
    """All live caches, and all snapshots newest first."""
    home = call.home
    current = current_key(home)
    return CacheList(
        live=tuple(_live(home, live, current) for live in all_lives(home)),
        snapshots=tuple(summary(home, record, current) for record in all_snapshots(home)),
    )
