"""One look at all targets: reach, environments, caches, runs, and what to do next. Changes nothing, never prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.config import Config
from opsctl.errors import OpsctlError
from opsctl.ops import cache, env, runs
from opsctl.ops.workspace import Workspace, build_target
from opsctl.records.cache import CacheList
from opsctl.records.env import EnvCheck, EnvEntry
from opsctl.records.run import RunStatus

LIVE_STATES = frozenset({"starting", "running", "unwatched"})


@dataclass(frozen=True)
class TargetStatus:
    """What stands on one target; `problem` says why the rest is not known."""

    name: str
    label: str
    reach_s: float | None = None  # how long the first answer took; None where none came
    problem: str = ""
    hint: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # as `probe` tells them
    envs: tuple[EnvEntry, ...] = ()
    env_check: EnvCheck | None = None  # of the active environment, made now
    caches: CacheList = CacheList((), ())  # noqa: RUF009 - frozen, so that sharing it is safe
    runs: tuple[RunStatus, ...] = ()  # live ones first, then the newest

    @property
    def active_env(self) -> EnvEntry | None:
        """The environment that new runs get."""
        return next((one for one in self.envs if one.is_active), None)


def status(workspace: Workspace, *, only: str | None = None) -> list[TargetStatus]:
    """The status of every target of the configuration, or of the one called `only`; unreachable ones have a problem."""
    names = [only] if only else list(workspace.config.targets)
    places = [replace(workspace, target=build_target(*workspace.config.target(name))) for name in names]
    with ThreadPoolExecutor(max_workers=8, thread_name_prefix="status") as pool:
        return list(pool.map(look, places))


def look(workspace: Workspace) -> TargetStatus:
    """The status of one target; what goes wrong there becomes its problem."""
    found = TargetStatus(workspace.target.name, workspace.target.label)
    began = time.monotonic()
    try:
        facts = workspace.client.call("probe")
        found = replace(found, facts=facts, reach_s=time.monotonic() - began)
        return _ask(workspace, found)
    except OpsctlError as error:
        return replace(found, problem=error.message, hint=error.hint)


def _ask(workspace: Workspace, found: TargetStatus) -> TargetStatus:
    """Ask for the rest at once; the probe has brought the agent there."""
    with ThreadPoolExecutor(max_workers=3, thread_name_prefix="ask") as pool:
        envs, caches, listed = (pool.submit(noun.listing, workspace) for noun in (env, cache, runs))
        found = replace(found, envs=tuple(envs.result()))
        check = env.verify(workspace) if found.active_env else None
        return replace(found, env_check=check, caches=caches.result(), runs=live_first(listed.result()))


def live_first(listed: Iterable[RunStatus]) -> tuple[RunStatus, ...]:
    """Live runs, then the others, each with the newest first."""
    return tuple(sorted(listed, key=lambda one: (one.state not in LIVE_STATES, -one.run.created)))


def next_steps(found: TargetStatus, config: Config, *, missing_set: str = "") -> list[str]:
    """What helps most now, as sentences with a command each; the first is the most urgent.

    `missing_set` says what must be done before an environment can be built.
    """
    return list(_next_steps(found, config, missing_set)) if found.reach_s is not None and not found.problem else []


def _next_steps(found: TargetStatus, config: Config, missing_set: str) -> Iterator[str]:
    live = [one for one in found.runs if one.state in LIVE_STATES]
    ended = [one for one in found.runs if one.run.spec.kind == "train" and one.state not in LIVE_STATES]
    if live:
        yield f"`opsctl watch {live[0].run.run_id}` follows the run"
    elif ended and ended[0].verdict.verdict in ("crashed", "unknown"):
        yield f"`opsctl watch --once {ended[0].run.run_id}` tells why it ended"
    if not found.active_env:
        yield f"for an environment: {missing_set}" if missing_set else "`opsctl env rebuild` builds the environment"
    elif found.env_check and not found.env_check.is_clean:
        yield "`opsctl env verify` lists what differs; `opsctl env rebuild` builds it anew"
    yield from _cache_steps(found, config)
    if not live and not ended:
        is_far = bool(missing_set) and not found.active_env
        jobs = (name for name, job in config.jobs.items() if not (is_far and job.env))
        without = ", which needs no environment" if is_far else ""
        yield f"`opsctl train start {next(jobs, '-- COMMAND')}` starts a run{without}"


def _cache_steps(found: TargetStatus, config: Config) -> Iterator[str]:
    current = next((one for one in found.caches.live if one.is_current), None)
    warms = next((name for name, job in config.jobs.items() if job.prewarm), None)
    if current and current.warmed and not current.snapshot_id:
        yield "`opsctl cache snapshot` saves the warm compile cache"
    elif warms and found.active_env and not (current and current.warmed):
        fits = any(one.fits for one in found.caches.snapshots)
        yield (
            "`opsctl cache restore` brings back a saved one"
            if fits
            else f"`opsctl cache prewarm {warms}` warms the cache"
        )
