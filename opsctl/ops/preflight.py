"""Tries a job's topology before hours go into it: its preflight command as a run on the target. Never prints."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from opsctl.errors import ConfigError, UsageError
from opsctl.ops.deploy import deploy
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.starting import starting
from opsctl.ops.train import check_words, read_secrets
from opsctl.ops.workspace import Workspace, operator_name
from opsctl.records.call import from_json, to_json
from opsctl.records.preflight import PreflightOutcome
from opsctl.records.run import RunRecord, RunSpec

if TYPE_CHECKING:
    from opsctl.config import JobConfig


def preflight(
    workspace: Workspace, job_name: str | None = None, *, words: tuple[str, ...] = (), on_progress: OnProgress = unheard
) -> PreflightOutcome:
    """Run the job's `preflight` command, with more `words`, in its environment and on its GPUs, to its end.

    Raises ConfigError where the job has none, Busy, CheckFailed (no environment), CommandFailed.
    """
    name = job_name or _only_job(workspace)
    job = workspace.config.job(name)
    if not job.preflight:
        raise ConfigError(
            f"the job {name} has no `preflight` command", hint=f"add jobs.{name}.preflight to opsctl.yaml"
        )
    check_words(words, job, "preflight")
    secrets = read_secrets(job.secrets, os.environ)
    spec = replace(_spec(name, job, words), secret_names=tuple(secrets))
    if job.code:
        code = deploy(workspace)
        spec = replace(spec, code=code.name, code_origin=code.origin)
    values = {key: secret.reveal() for key, secret in secrets.items()}
    uploads = (json.dumps(values).encode(),) if values else ()
    request = {"spec": to_json(spec), "job": name, "uses_env": job.env}
    with starting(spec.name, lambda text: on_progress({"text": text})):
        run = from_json(RunRecord, workspace.client.call("preflight", request, uploads=uploads))
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    return from_json(PreflightOutcome, follow(workspace, run, on_progress=on_progress))


def _spec(name: str, job: JobConfig, words: tuple[str, ...]) -> RunSpec:
    return RunSpec(
        name=f"preflight-{name}",
        argv=(*job.preflight, *words),
        kind="preflight",
        environment=dict(job.environment),
        gpus=job.gpus,
        share=job.share,
        stop_grace_s=job.stop_grace_s,
        operator=operator_name(),
        why=f"preflight of {name}",
    )


def _only_job(workspace: Workspace) -> str:
    names = [name for name, job in workspace.config.jobs.items() if job.preflight]
    if len(names) == 1:
        return names[0]
    if names:
        raise UsageError(f"which job? {', '.join(names)} have a preflight", hint="opsctl train preflight JOB")
    raise UsageError(
        "no job of the configuration has a `preflight` command", hint="add jobs.NAME.preflight to opsctl.yaml"
    )
