"""`env-prune`: removes environments that nobody uses; the active one and the newest stay. Caches are not touched."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from opsctl.agent.cache.key import kept_key
from opsctl.agent.cache.live import listing, live_of
from opsctl.agent.cache.snapshot import is_saved
from opsctl.agent.env.layout import REMOVED, EnvPaths, active, is_active_name, standing
from opsctl.agent.env.plan import LOCK_NAME
from opsctl.agent.env.users import abandoned, users
from opsctl.agent.files import fsync_folder
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.session import Call
from opsctl.errors import UsageError
from opsctl.records.env import EnvRecord, KeptEnv, PruneOutcome, RemovedEnv

_BLOCK_BYTES = 512


def reasons(
    found: Iterable[tuple[str, float]], *, active_id: str, keep: int, used: Mapping[str, Iterable[str]]
) -> dict[str, str]:
    """Why each environment (id, time of its build) stays; those that may go are not in the answer. Pure.

    >>> reasons([("a", 1.0), ("b", 2.0), ("c", 3.0)], active_id="a", keep=1, used={})
    {'c': 'among the newest 1', 'a': 'active'}
    """
    newest = sorted(found, key=lambda pair: pair[1], reverse=True)
    why = {env_id: f"among the newest {keep}" for env_id, _ in newest[:keep]}
    for env_id, _ in newest:
        if by := list(used.get(env_id, ())):
            why[env_id] = f"used by {', '.join(by[:3])}" + (f" and {len(by) - 3} more" if len(by) > 3 else "")
    if active_id:
        why[active_id] = "active"
    return why


def prune(call: Call) -> PruneOutcome:
    """Remove all but the active, the newest request["keep"] and those in use; with `dry_run` only say what would go."""
    keep, is_dry_run = int(call.request["keep"]), bool(call.request.get("dry_run", False))
    if keep < 1:
        raise UsageError(f"at least one environment is kept, not {keep}")
    call.home.ensure()
    with held(call.home.locks / LOCK_NAME, operator=call.operator, why="env prune", wait_s=1.0):
        return _prune(call, keep, is_dry_run=is_dry_run)


def _prune(call: Call, keep: int, *, is_dry_run: bool) -> PruneOutcome:
    home = call.home
    found = list(standing(home))
    now = active(home)
    ages = [(paths.env_id, record.created) for paths, record in found]
    why = reasons(ages, active_id=now.env_id if now else "", keep=keep, used=_used(home))
    removed: list[RemovedEnv] = []
    for paths, record in found:
        if paths.env_id in why:
            continue
        call.session.progress(f"removing {paths.env_id}", done=len(removed), total=len(found) - len(why))
        one = RemovedEnv(
            paths.env_id, record.name, record.created, disk_mib(paths.root), _lost_cache(home, paths, found, why)
        )
        if not is_dry_run and (by := _remove(home, paths)):
            why[paths.env_id] = f"used by {by[0]}"
        else:
            removed.append(one)
    removed += _leftovers(home, is_dry_run=is_dry_run)
    kept = tuple(
        KeptEnv(paths.env_id, record.name, record.created, why[paths.env_id])
        for paths, record in found
        if paths.env_id in why
    )
    return PruneOutcome(tuple(removed), kept, round(sum(one.size_mib for one in removed), 1), is_dry_run)


def _used(home: Home) -> dict[str, list[str]]:
    return {Path(root).name: by for root, by in users(home).items()}


def _remove(home: Home, paths: EnvPaths) -> list[str]:
    """Take the environment out of reach, then delete it; returns who began to use it just now, and then it stays."""
    aside = paths.root.with_name(f"{REMOVED}{paths.env_id}")
    paths.root.rename(aside)
    fsync_folder(home.envs)
    by = ["whoever activated it just now"] if is_active_name(home, paths.env_id) else _used(home).get(paths.env_id, [])
    if by:
        aside.rename(paths.root)
        return by
    shutil.rmtree(aside)
    return []


def _leftovers(home: Home, *, is_dry_run: bool) -> list[RemovedEnv]:
    """What builds and removals that were ended left behind; links that lead nowhere any more go unmentioned."""
    found = []
    for link in home.envs.iterdir():
        if link.is_symlink() and not link.exists() and link != home.active_env and not is_dry_run:
            link.unlink()
    for root in abandoned(home):
        found.append(RemovedEnv(root.name, "", root.stat().st_mtime, disk_mib(root), is_leftover=True))
        if not is_dry_run:
            shutil.rmtree(root)
    return found


def disk_mib(root: Path) -> float:
    """What the folder takes on the disk; names that share their bytes with others count nothing."""
    stats = (path.lstat() for path in root.rglob("*"))
    return round(sum(one.st_blocks * _BLOCK_BYTES for one in stats if one.st_nlink == 1) / 2**20, 1)


def _lost_cache(home: Home, paths: EnvPaths, found: list[tuple[EnvPaths, EnvRecord]], why: Mapping[str, Any]) -> str:
    """The live cache that no environment fits any more once this one is gone, and that no snapshot holds."""
    key = kept_key(paths)
    if key is None or key in [kept_key(other) for other, _ in found if other.env_id in why]:
        return ""
    live = live_of(home, key)
    files = listing(live.root)
    return key.digest if files and not is_saved(home, live, files) else ""
