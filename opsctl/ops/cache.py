"""Compile caches on a target: prewarm, verify, snapshot, restore, list. Never prints."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.ops.conditions import conditions
from opsctl.ops.job_command import job_command, start
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.starting import starting
from opsctl.ops.workspace import Workspace
from opsctl.records.cache import CacheList, RestoreOutcome, SnapshotOutcome, Warmed, WarmthCheck
from opsctl.records.call import from_json
from opsctl.records.run import RunRecord


@dataclass(frozen=True)
class Prewarmed:
    """What a prewarm came to, and in which run."""

    warmed: Warmed
    run_id: str
    notes: tuple[str, ...] = ()


def prewarm(workspace: Workspace, job_name: str | None = None, *, on_progress: OnProgress = unheard) -> Prewarmed:
    """Run the job's `prewarm` command in its environment, into the live cache, to its end.

    Raises ConfigError where the job has none, Busy, CheckFailed (no environment), CommandFailed.
    """
    run = _start(workspace, job_name, "prewarm", on_progress)
    warmed = from_json(Warmed, follow(workspace, run, on_progress=on_progress))
    return Prewarmed(warmed, run.run_id, run.spec.notes)


def verify(workspace: Workspace, job_name: str | None = None, *, on_progress: OnProgress = unheard) -> WarmthCheck:
    """Run the job's prewarm in a copy of the live cache, which must have everything; the cache itself is only read.

    Raises CheckFailed for an empty cache, ConfigError where the job has no prewarm, Busy, CommandFailed.
    """
    run = _start(workspace, job_name, "verify", on_progress)
    return from_json(WarmthCheck, follow(workspace, run, on_progress=on_progress))


def _start(workspace: Workspace, job_name: str | None, kind: str, on_progress: OnProgress) -> RunRecord:
    """Start the job's prewarm command as a run of this kind."""
    command = job_command(workspace, job_name, "prewarm", usage=f"opsctl cache {kind} JOB")
    request = {"conditions": conditions(workspace, command.job)}
    verb, why = f"cache-{kind}", f"cache {kind}"
    return start(workspace, verb, command, kind=kind, why=why, on_progress=on_progress, request=request)


def snapshot(
    workspace: Workspace, job_name: str | None = None, *, on_progress: OnProgress = unheard
) -> SnapshotOutcome:
    """Save the live cache that the job uses (none named: that of the active environment)."""
    with starting("cache-snapshot", lambda text: on_progress({"text": text})):
        answer = workspace.client.call("cache-snapshot", {"uses_env": uses_env(workspace, job_name)})
    if answer["outcome"] is not None:
        return from_json(SnapshotOutcome, answer["outcome"])
    run = from_json(RunRecord, answer["run"])
    return from_json(SnapshotOutcome, follow(workspace, run, on_progress=on_progress))


def restore(
    workspace: Workspace,
    snapshot_id: str = "",
    *,
    job_name: str | None = None,
    replace_live: bool = False,
    trust: bool = False,
    on_progress: OnProgress = unheard,
) -> RestoreOutcome:
    """Put a snapshot ("" = the newest that fits) in the place of the live cache.

    Raises CheckFailed where it does not fit, is damaged, came from elsewhere (unless `trust`), or the live cache is
    warm and not to be replaced.
    """
    with_env = uses_env(workspace, job_name)
    request = {"snapshot": snapshot_id, "replace": replace_live, "trust": trust, "uses_env": with_env}
    return from_json(RestoreOutcome, workspace.client.call("cache-restore", request, on_progress=on_progress))


def listing(workspace: Workspace) -> CacheList:
    """The live caches and the snapshots on the target."""
    return from_json(CacheList, workspace.client.call("cache-list"))


def uses_env(workspace: Workspace, job_name: str | None) -> bool:
    """Whether the job runs in the active environment; so does what names no job."""
    return workspace.config.job(job_name).env if job_name else True
