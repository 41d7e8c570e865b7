"""`env-prune`: removes environments that nobody uses; the active one and the newest stay. Caches are not touched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent.cache.key import kept_key
from opsctl.agent.cache.live import listing, live_of
from opsctl.agent.cache.snapshot import is_saved
from opsctl.agent.env.layout import REMOVED, EnvPaths, active, is_active_name, standing
from opsctl.agent.env.plan import LOCK_NAME
from opsctl.agent.env.users import abandoned, users
from opsctl.agent.files import fsync_folder, remove
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.agent.session import Call
from opsctl.errors import UsageError
from opsctl.formats.listing import some
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
            why[env_id] = f"used by {some(by, 3)}"
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
        doomed, kept = _choose(call.home, keep, is_dry_run=is_dry_run)
    removed = tuple(_removed(call, folder, one, is_dry_run=is_dry_run) for folder, one in doomed.items())
    return PruneOutcome(removed, kept, round(sum(one.size_mib for one in removed), 1), is_dry_run)


def _choose(home: Home, keep: int, *, is_dry_run: bool) -> tuple[dict[Path, RemovedEnv], tuple[KeptEnv, ...]]:
    """The folders that go, moved out of reach by now, each with what is told of it; and what stays."""
    found = list(standing(home))
    now = active(home)
    ages = [(paths.env_id, record.created) for paths, record in found]
    why = reasons(ages, active_id=now.env_id if now else "", keep=keep, used=_used(home))
    doomed: dict[Path, RemovedEnv] = {}
    for paths, record in found:
        if paths.env_id in why:
            continue
        one = RemovedEnv(paths.env_id, record.name, record.created, 0.0, _lost_cache(home, paths, found, why))
        aside, by = (paths.root, []) if is_dry_run else _put_aside(home, paths)
        if by:
            why[paths.env_id] = f"used by {by[0]}"
        else:
            doomed[aside] = one
    doomed |= _leftovers(home, doomed, is_dry_run=is_dry_run)
    kept = tuple(
        KeptEnv(paths.env_id, record.name, record.created, why[paths.env_id])
        for paths, record in found
        if paths.env_id in why
    )
    return doomed, kept


def _removed(call: Call, folder: Path, one: RemovedEnv, *, is_dry_run: bool) -> RemovedEnv:
    """Measure and delete what went out of reach: minutes for a large one, in which a rebuild need not wait."""
    call.session.progress(f"removing {one.env_id}")
    size_mib = disk_mib(folder)
    if not is_dry_run:
        remove(folder)
    return replace(one, size_mib=size_mib)


def _used(home: Home) -> dict[str, list[str]]:
    return {Path(root).name: by for root, by in users(home).items()}


def _put_aside(home: Home, paths: EnvPaths) -> tuple[Path, list[str]]:
    """Take the environment out of reach; returns where it is now, and who began to use it, and then it stays."""
    aside = paths.root.with_name(f"{REMOVED}{paths.env_id}")
    paths.root.rename(aside)
    fsync_folder(home.envs)
    by = ["whoever activated it just now"] if is_active_name(home, paths.env_id) else _used(home).get(paths.env_id, [])
    if by:
        aside.rename(paths.root)
    return aside, by


def _leftovers(home: Home, doomed: Collection[Path], *, is_dry_run: bool) -> dict[Path, RemovedEnv]:
    """What builds and removals that were ended left behind; links that lead nowhere any more go unmentioned."""
    for link in home.envs.iterdir():
        if link.is_symlink() and not link.exists() and link != home.active_env and not is_dry_run:
            link.unlink()
    found: dict[Path, RemovedEnv] = {}
    for root in abandoned(home):
        with contextlib.suppress(FileNotFoundError):  # another prune is at it
            found[root] = RemovedEnv(root.name, "", root.stat().st_mtime, 0.0, is_leftover=True)
    return {root: one for root, one in found.items() if root not in doomed}


def disk_mib(root: Path) -> float:
    """What the folder takes on the disk; names that share their bytes with others count nothing."""
    num_blocks = 0
    for path in (Path(folder, name) for folder, _, names in os.walk(root) for name in names):
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
            found = path.lstat()
            num_blocks += found.st_blocks if found.st_nlink == 1 else 0
    return round(num_blocks * _BLOCK_BYTES / 2**20, 1)


def _lost_cache(home: Home, paths: EnvPaths, found: list[tuple[EnvPaths, EnvRecord]], why: Mapping[str, Any]) -> str:
    """The live cache that no environment fits any more once this one is gone, and that no snapshot holds."""
    key = kept_key(paths)
    if key is None or key in [kept_key(other) for other, _ in found if other.env_id in why]:
        return ""
    live = live_of(home, key)
    files = listing(live.root)
    return key.digest if files and not is_saved(home, live, files) else ""
