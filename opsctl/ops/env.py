"""Environments on a target: rebuild, verify, list, activate. Locking is in `env_lock`. Never prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opsctl.formats.lockfile import parse_lock, parse_options, requirement_names
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.sets import PinnedSet, configured_sources, pinned_set, sha256_of
from opsctl.ops.tools import LocalTool, bring, uv_for
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json, to_json
from opsctl.records.env import STEERING, EnvCheck, EnvContents, EnvEntry, EnvOutcome, EnvPlan, EnvRequest, PruneOutcome
from opsctl.records.run import RunRecord


@dataclass(frozen=True)
class Rebuilt:
    """How a rebuild ended, and what is worth saying about it."""

    outcome: EnvOutcome
    run_id: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Activated:
    """Which environment is active now, and which one was."""

    env_id: str
    path: str
    before: str
    check: EnvCheck


def _request(workspace: Workspace, wanted: PinnedSet) -> EnvRequest:
    text = wanted.lock_text()
    parse_lock(text, label=str(wanted.lock))
    return EnvRequest(
        name=wanted.name,
        lock=text,
        label=str(wanted.lock),
        direct=requirement_names(wanted.wanted.read_text()) if wanted.wanted.is_file() else (),
        sources=configured_sources(workspace.config.env, workspace.folder),
    )


def _stale_note(wanted: PinnedSet, lock: str) -> tuple[str, ...]:
    """A sentence where NAME.in was changed after it was locked."""
    locked = parse_options(lock, label=str(wanted.lock)).set_sha256
    if not locked or not wanted.wanted.is_file() or sha256_of(wanted.wanted.read_text()) == locked:
        return ()
    return (f"{wanted.wanted.name} was changed since it was locked: `opsctl env lock {wanted.name}` takes it up",)


def rebuild(workspace: Workspace, name: str | None = None, *, on_progress: OnProgress = unheard) -> Rebuilt:
    """Leave an environment for NAME.lock standing, verified and active.

    Raises ConfigError for a lock that is wrong, Busy while another rebuild works, DiskFull, and what
    went wrong while building; the environment that was active before then still is.
    """
    wanted = pinned_set(workspace, name)
    request = _request(workspace, wanted)
    notes = _stale_note(wanted, request.lock)
    plan = from_json(EnvPlan, workspace.client.call("env-plan", {"env": to_json(request)}))
    if plan.outcome is not None:
        return Rebuilt(plan.outcome, notes=(*notes, *plan.outcome.notes))
    drifted = tuple(f"{one.env_id} has drifted in {len(one.drifts)} places; built anew" for one in plan.drifted)
    run = _start(workspace, request, plan.machine, on_progress=on_progress)
    outcome = from_json(EnvOutcome, follow(workspace, run, on_progress=on_progress))
    return Rebuilt(outcome, run.run_id, (*notes, *drifted, *outcome.notes))


def _start(workspace: Workspace, request: EnvRequest, machine: str, *, on_progress: OnProgress) -> RunRecord:
    local: LocalTool = uv_for(workspace, machine)
    body = {"env": {**to_json(request), "tool": to_json(local.tool)}}
    answer = workspace.client.call("env-rebuild", body)
    if answer["needs_tool"]:
        bring(workspace, local, on_progress=on_progress)
        answer = workspace.client.call("env-rebuild", body)
    run = from_json(RunRecord, answer["run"])
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    return run


def verify(
    workspace: Workspace, env_id: str = "", *, full: bool = False, on_progress: OnProgress = unheard
) -> EnvCheck:
    """Compare an environment ("" = the active one) with its manifest; `full` hashes every file.

    Also told: variables that change what jobs import, of the target, of its login shells and of opsctl.yaml.
    """
    request = {"env": env_id, "full": full, "login": True}
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
