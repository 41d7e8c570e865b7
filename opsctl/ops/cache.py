"""Compile caches on a target: prewarm, verify, snapshot, restore, list. Never prints."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opsctl.errors import ConfigError, UsageError
from opsctl.ops.conditions import conditions
from opsctl.ops.deploy import deploy
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.starting import starting
from opsctl.ops.train import read_secrets
from opsctl.ops.workspace import Workspace, operator_name
from opsctl.records.cache import CacheList, RestoreOutcome, SnapshotOutcome, Warmed, WarmthCheck
from opsctl.records.call import from_json, to_json
from opsctl.records.run import RunRecord, RunSpec

if TYPE_CHECKING:
    from opsctl.config import JobConfig


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
    run, notes = _start_prewarm(workspace, job_name, "cache-prewarm", "prewarm", on_progress)
    warmed = from_json(Warmed, follow(workspace, run, on_progress=on_progress))
    return Prewarmed(warmed, run.run_id, notes)


def verify(workspace: Workspace, job_name: str | None = None, *, on_progress: OnProgress = unheard) -> WarmthCheck:
    """Run the job's prewarm in a copy of the live cache, which must have everything; the cache itself is only read.

    Raises CheckFailed for an empty cache, ConfigError where the job has no prewarm, Busy, CommandFailed.
    """
    run, _ = _start_prewarm(workspace, job_name, "cache-verify", "verify", on_progress)
    return from_json(WarmthCheck, follow(workspace, run, on_progress=on_progress))


def _start_prewarm(
    workspace: Workspace, job_name: str | None, verb: str, kind: str, on_progress: OnProgress
) -> tuple[RunRecord, tuple[str, ...]]:
    """Start the job's prewarm command as a run of this kind; its notes are for the user."""
    name = job_name or _only_job(workspace)
    job = workspace.config.job(name)
    if not job.prewarm:
        raise ConfigError(f"the job {name} has no `prewarm` command", hint=f"add jobs.{name}.prewarm to opsctl.yaml")
    secrets = read_secrets(job.secrets, os.environ)
    spec = replace(_prewarm_spec(workspace, name, job, kind), secret_names=tuple(secrets))
    notes: tuple[str, ...] = ()
    if job.code:
        code = deploy(workspace)
        spec = replace(spec, code=code.name, code_origin=code.origin)
        notes = (f"the code is {code.origin}",) if code.is_dirty else ()
    request = {
        "spec": to_json(spec),
        "job": name,
        "uses_env": job.env,
        "conditions": conditions(workspace, job),
    }
    values = {key: secret.reveal() for key, secret in secrets.items()}
    uploads = (json.dumps(values).encode(),) if values else ()
    with starting(spec.name, lambda text: on_progress({"text": text})):
        run = from_json(RunRecord, workspace.client.call(verb, request, uploads=uploads))
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    return run, notes


def _prewarm_spec(workspace: Workspace, name: str, job: JobConfig, kind: str) -> RunSpec:
    return RunSpec(
        name=f"{kind}-{name}",
        argv=job.prewarm,
        kind=kind,
        environment=dict(job.environment),
        gpus=job.gpus,
        share=job.share,
        stop_grace_s=job.stop_grace_s,
        operator=operator_name(),
        why=f"cache {kind} of {name}",
    )


def _only_job(workspace: Workspace) -> str:
    names = [name for name, job in workspace.config.jobs.items() if job.prewarm]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"which job? {', '.join(names)} have a prewarm", hint="opsctl cache prewarm JOB")
    raise UsageError("no job of the configuration has a `prewarm` command", hint="add jobs.NAME.prewarm to opsctl.yaml")


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
