"""Starts a job of the configuration, or any command, as a run. Never prints."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from opsctl.errors import CheckFailed, ConfigError, UsageError
from opsctl.formats import placeholders
from opsctl.ops import runs
from opsctl.ops.env import steering_notes
from opsctl.ops.workspace import Workspace, operator_name
from opsctl.records.cache import StartCache
from opsctl.records.call import from_json
from opsctl.records.env import EnvCheck
from opsctl.records.run import Notify, Restart, RunRecord, RunSpec
from opsctl.target.command import Secret

if TYPE_CHECKING:
    from opsctl.config import FromEnv, JobConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What the command line asks for; None and () leave it to the job's settings."""

    job: str | None = None
    name: str | None = None
    command: tuple[str, ...] = ()  # the whole command, or more words for the job's
    gpus: tuple[int, ...] | None = None
    share: bool = False
    allow_drift: bool = False
    why: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    baseline: str = ""


def start(workspace: Workspace, wish: Wish, *, say: Say = lambda _: None) -> RunRecord:
    """Start what `wish` names: check the environment, deploy the code, lease the GPUs, start the run.

    Raises Busy, CheckFailed (a drifted environment), ConfigError, UsageError, MissingTool, CommandFailed.
    """
    job_name = wish.job or (None if wish.command else _only_job(workspace))
    if job_name is None:
        return runs.start(workspace, _free_spec(workspace, wish), say=say)
    job = workspace.config.job(job_name)
    check_words(wish.command, job, "command")
    secrets = read_secrets(job.secrets, os.environ)
    spec = _job_spec(workspace, wish, job_name, job)
    notes: list[str] = []
    if job.env:
        env_id, env_notes = _verified_env(workspace, job, allow_drift=wish.allow_drift)
        spec, notes = replace(spec, env=env_id), [*notes, *env_notes, *steering_notes(spec.environment, "the job")]
    if job.code:
        spec, notes = _with_code(workspace, spec, notes)
    has_cache = job.env or bool(job.prewarm)
    if has_cache:
        spec, notes = _with_cache(workspace, spec, job_name, job, notes)
    for note in notes:
        say(note)
    spec = replace(spec, notes=tuple(notes), secret_names=tuple(secrets))
    return runs.start(workspace, spec, secrets=secrets, has_placeholders=True, has_cache=has_cache, say=say)


def _only_job(workspace: Workspace) -> str:
    jobs = list(workspace.config.jobs)
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        raise UsageError(f"which job? the configuration has {', '.join(jobs)}", hint="opsctl train start JOB")
    raise UsageError("the configuration has no job", hint="opsctl train start -- COMMAND WORD...")


def default_name(command: tuple[str, ...]) -> str:
    """A run's name where none was given: its program's.

    >>> default_name(("/usr/bin/python3.11", "x.py"))
    'python3.11'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(command[0]).name).lstrip("._-") or "run"


def _free_spec(workspace: Workspace, wish: Wish) -> RunSpec:
    return RunSpec(
        name=wish.name or default_name(wish.command),
        argv=wish.command,
        environment=wish.environment,
        gpus=wish.gpus or (),
        share=wish.share,
        notify=notify(workspace),
        baseline=wish.baseline,
        operator=operator_name(),
        why=wish.why,
    )


def _job_spec(workspace: Workspace, wish: Wish, name: str, job: JobConfig) -> RunSpec:
    return RunSpec(
        name=wish.name or name,
        argv=(*job.command, *wish.command),
        environment={**job.environment, **wish.environment},
        gpus=job.gpus if wish.gpus is None else wish.gpus,
        share=job.share or wish.share,
        stop_grace_s=job.stop_grace_s,
        sample_period_s=job.sample_period_s,
        restart=Restart(job.restart.max, job.restart.backoff_s),
        notify=notify(workspace),
        expect_compiled=job.expect_compiled,
        baseline=wish.baseline or job.baseline or "",
        operator=operator_name(),
        why=wish.why,
    )


def notify(workspace: Workspace) -> Notify:
    """Whom a run's recorder tells."""
    settings = workspace.config.notify
    return Notify(settings.command, settings.webhook, settings.heartbeat)


def read_secrets(references: Mapping[str, FromEnv], environment: Mapping[str, str]) -> dict[str, Secret]:
    """The values that a job's secrets refer to; raises ConfigError for a reference that leads nowhere."""
    missing = [one.from_env for one in references.values() if one.from_env not in environment]
    if missing:
        raise ConfigError(
            f"the job's secrets refer to the environment variable {missing[0]}, which is not set here",
            hint=f"export {missing[0]}, then start the job again",
        )
    return {name: Secret(environment[one.from_env]) for name, one in references.items()}


def check_words(words: tuple[str, ...], job: JobConfig, key: str) -> None:
    """Raise UsageError for a placeholder that means nothing in further words for the job's `key`."""
    problem = placeholders.problem(words, job.missing_placeholders(key))
    if problem:
        raise UsageError(problem, hint="see `jobs` in opsctl.yaml for what is filled in")


def _verified_env(workspace: Workspace, job: JobConfig, *, allow_drift: bool) -> tuple[str, tuple[str, ...]]:
    """The active environment's id, checked; and what to say about it."""
    overridden = [*job.environment, *job.secrets, *(("PYTHONPATH",) if job.code else ())]
    request = {"env": "", "full": False, "overridden": overridden}
    found = from_json(EnvCheck, workspace.client.call("env-verify", request))
    if found.is_clean:
        return found.env_id, found.notes
    drifts = [f"{one.kind} {one.path}" for one in found.drifts]
    summary = f"environment {found.env_id} drifted: {', '.join(drifts[:3])}" + (", ..." if drifts[3:] else "")
    if not allow_drift:
        repair = "`opsctl env rebuild` repairs" if found.is_rebuildable else "unset the variable on the target"
        raise CheckFailed(summary, hint=f"`opsctl env verify` lists all, {repair}, --allow-drift starts anyway")
    return found.env_id, (f"started although {summary}", *found.notes)


def _with_code(workspace: Workspace, spec: RunSpec, notes: list[str]) -> tuple[RunSpec, list[str]]:
    from opsctl.ops.deploy import deploy

    code = deploy(workspace)
    if code.is_dirty:
        notes = [*notes, f"the code is no clean commit ({code.origin}); the run uses a copy, {code.name}"]
    return replace(spec, code=code.name, code_origin=code.origin), notes


def _with_cache(
    workspace: Workspace, spec: RunSpec, name: str, job: JobConfig, notes: list[str]
) -> tuple[RunSpec, list[str]]:
    """An empty live cache gets its snapshot back; what the run finds there is noted."""
    from opsctl.ops.conditions import conditions

    request = {
        "env": spec.env,
        "uses_env": job.env,
        "job": name,
        "has_prewarm": bool(job.prewarm),
        "conditions": conditions(workspace, job) if job.prewarm else {},
    }
    found = from_json(StartCache, workspace.client.call("cache-at-start", request))
    return replace(spec, expect_warm=found.is_warm_expected), [*notes, *found.notes]
