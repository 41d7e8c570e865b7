"""Compile caches held against each other, and against a job as it is now; and those that nobody needs. Never prints."""

from __future__ import annotations

from opsctl.ops.cache import uses_env
from opsctl.ops.conditions import conditions
from opsctl.ops.jobs import OnProgress, unheard
from opsctl.ops.workspace import Workspace
from opsctl.records.cache import CacheDiff, CacheExplanation, PruneOutcome
from opsctl.records.call import from_json


def diff(workspace: Workspace, a: str, b: str, *, job_name: str | None = None) -> CacheDiff:
    """How two caches differ: `live`, live caches and snapshots by the beginning of their names."""
    request = {"a": a, "b": b, "uses_env": uses_env(workspace, job_name)}
    return from_json(CacheDiff, workspace.client.call("cache-diff", request))


def explain(workspace: Workspace, cache: str = "", *, job_name: str | None = None) -> CacheExplanation:
    """Why a cache ("" = the live one, or where it is empty the nearest other) does or does not help the job here."""
    name = job_name or _only_job(workspace)
    request = {
        "cache": cache,
        "job": name,
        "uses_env": uses_env(workspace, name or None),
        "conditions": conditions(workspace, workspace.config.job(name)) if name else {},
    }
    return from_json(CacheExplanation, workspace.client.call("cache-explain", request))


def _only_job(workspace: Workspace) -> str:
    """The one job that has a prewarm, "" where none or several have: then only the key is explained."""
    names = [name for name, job in workspace.config.jobs.items() if job.prewarm]
    return names[0] if len(names) == 1 else ""


def prune(
    workspace: Workspace, *, keep: int, save: bool = False, dry_run: bool = False, on_progress: OnProgress = unheard
) -> PruneOutcome:
    """Remove snapshots beyond the newest `keep` of each key, and saved live caches of environments that are gone."""
    request = {"keep": keep, "save": save, "dry_run": dry_run}
    return from_json(PruneOutcome, workspace.client.call("cache-prune", request, on_progress=on_progress))
