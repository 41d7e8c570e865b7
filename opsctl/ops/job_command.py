"""Starts one of a job's own commands beside the job itself, its prewarm or its preflight, as a run. Never prints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from opsctl.config import JobConfig
from opsctl.errors import ConfigError, UsageError
from opsctl.ops.deploy import deploy
from opsctl.ops.jobs import OnProgress
from opsctl.ops.runs import secret_uploads
from opsctl.ops.starting import starting
from opsctl.ops.train import read_secrets
from opsctl.ops.workspace import Workspace, operator_name
from opsctl.records.call import from_json, to_json
from opsctl.records.run import RunRecord, RunSpec

Key = Literal["prewarm", "preflight"]


@dataclass(frozen=True)
class JobCommand:
    """A job of the configuration, and the words of the command that its `key` gives."""

    name: str
    job: JobConfig
    argv: tuple[str, ...]


def job_command(workspace: Workspace, job_name: str | None, key: Key, *, usage: str) -> JobCommand:
    """The job's command, or that of the only job that has one; raises ConfigError and UsageError, `usage` the hint."""
    name = job_name or _only_job(workspace, key, usage)
    job = workspace.config.job(name)
    argv: tuple[str, ...] = getattr(job, key)
    if not argv:
        raise ConfigError(f"the job {name} has no `{key}` command", hint=f"add jobs.{name}.{key} to opsctl.yaml")
    return JobCommand(name, job, argv)


def _only_job(workspace: Workspace, key: Key, usage: str) -> str:
    names = [name for name, job in workspace.config.jobs.items() if getattr(job, key)]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"which job? {', '.join(names)} have a {key}", hint=usage)
    raise UsageError(f"no job of the configuration has a `{key}` command", hint=f"add jobs.NAME.{key} to opsctl.yaml")


def start(
    workspace: Workspace,
    verb: str,
    command: JobCommand,
    *,
    kind: str,
    why: str,
    on_progress: OnProgress,
    request: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Start the command by the agent's `verb`, in the job's environment and with its code, as a run of this kind.

    `request` is what the verb takes beside the job. Raises Busy, CheckFailed (no environment), ConfigError.
    """
    job = command.job
    secrets = read_secrets(job.secrets, os.environ)
    code = deploy(workspace) if job.code else None
    spec = RunSpec(
        name=f"{kind}-{command.name}",
        argv=command.argv,
        kind=kind,
        environment=dict(job.environment),
        secret_names=tuple(secrets),
        code=code.name if code else "",
        code_origin=code.origin if code else "",
        gpus=job.gpus,
        share=job.share,
        stop_grace_s=job.stop_grace_s,
        operator=operator_name(),
        why=f"{why} of {command.name}",
        notes=(f"the code is {code.origin}",) if code and code.is_dirty else (),
    )
    for note in spec.notes:
        on_progress({"text": f"note: {note}"})
    whole = {"spec": to_json(spec), "job": command.name, "uses_env": job.env, **(request or {})}
    with starting(spec.name, lambda text: on_progress({"text": text})):
        run = from_json(RunRecord, workspace.client.call(verb, whole, uploads=secret_uploads(secrets)))
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    return run
