"""Environments on a target: verify, list, activate, prune; `env_rebuild` builds them. Never prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opsctl.ops.jobs import OnProgress, unheard
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.records.env import STEERING, EnvCheck, EnvContents, EnvEntry, PruneOutcome


@dataclass(frozen=True)
class Activated:
    """Which environment is active now, and which one was."""

    env_id: str
    path: str
    before: str
    check: EnvCheck


def verify(
    workspace: Workspace,
    env_id: str = "",
    *,
    full: bool = False,
    asks_login: bool = False,
    on_progress: OnProgress = unheard,
) -> EnvCheck:
    """Compare an environment ("" = the active one) with its manifest; `full` hashes every file.

    Also told: variables that change what jobs import, of the target, of opsctl.yaml, and with `asks_login` those that
    only a login shell on the target sets.
    """
    request = {"env": env_id, "full": full, "login": asks_login}
    found = from_json(EnvCheck, workspace.client.call("env-verify", request, on_progress=on_progress))
    jobs = workspace.config.jobs
    own = [note for name, job in jobs.items() if job.env for note in steering_notes(job.environment, f"the job {name}")]
    return replace(found, notes=(*found.notes, *own))


def steering_notes(environment: Mapping[str, str], who: str) -> tuple[str, ...]:
    """A sentence for each variable by which `who` chooses to import something else than the environment holds.

    >>> steering_notes({"PYTHONPATH": "/src", "HOME": "/"}, "the job x")
    ('the job x sets PYTHONPATH (/src): it may import something else than the environment holds',)
    """
    return tuple(
        f"{who} sets {name} ({environment[name]}): it may import something else than the environment holds"
        for name in STEERING
        if environment.get(name)
    )


def listing(workspace: Workspace) -> list[EnvEntry]:
    """The environments on the target, newest first."""
    return [from_json(EnvEntry, one) for one in workspace.client.call("env-list")]


def activate(workspace: Workspace, env_id: str) -> Activated:
    """Make an environment the active one; raises CheckFailed if it has drifted, UsageError if there is none."""
    return from_json(Activated, workspace.client.call("env-activate", {"env": env_id}))


def prune(
    workspace: Workspace, *, keep: int | None = None, is_dry_run: bool = False, on_progress: OnProgress = unheard
) -> PruneOutcome:
    """Remove environments; the active one, the newest `keep` (default: env.keep) and those in use stay.

    Raises Busy while a rebuild works.
    """
    request = {"keep": workspace.config.env.keep if keep is None else keep, "dry_run": is_dry_run}
    return from_json(PruneOutcome, workspace.client.call("env-prune", request, on_progress=on_progress))


def contents(workspace: Workspace, env_id: str = "", *, has_files: bool = False) -> EnvContents:
    """What an environment ("" = the active one) holds now; `has_files` adds the hash of every file."""
    answer = workspace.client.call("env-contents", {"env": env_id, "files": has_files})
    return from_json(EnvContents, answer)
