"""`env rebuild`: an environment for a lock, built on the target as a run and followed to its end. Never prints."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.config_file import read
from opsctl.errors import UsageError
from opsctl.formats.lockfile import parse_lock, parse_options, requirement_names
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.sets import PinnedSet, candidates, configured_sources, sha256_of
from opsctl.ops.starting import starting
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json, to_json
from opsctl.records.env import EnvOutcome, EnvPlan, EnvRequest

if TYPE_CHECKING:
    from opsctl.records.run import RunRecord


@dataclass(frozen=True)
class Rebuilt:
    """How a rebuild ended, and what is worth saying about it."""

    outcome: EnvOutcome
    run_id: str = ""
    notes: tuple[str, ...] = ()


def rebuild(
    workspace: Workspace,
    name: str | None = None,
    *,
    wheelhouse: Path | None = None,
    on_progress: OnProgress = unheard,
) -> Rebuilt:
    """Leave an environment for NAME.lock standing, verified and active; for `auto` the driver chooses the lock.

    With `wheelhouse`, a folder here, its files are brought along, and the target asks nobody for any.
    Raises ConfigError for a lock that is wrong, CheckFailed for a driver that is too old, Busy while another
    rebuild works, DiskFull, and what went wrong while building; the environment that was active before then still is.
    """
    sets = {one.name: one for one in candidates(workspace, name)}
    requests = {one.name: _request(workspace, one) for one in sets.values()}
    asked = [to_json(one) for one in requests.values()]
    plan = from_json(EnvPlan, workspace.client.call("env-plan", {"envs": asked}))
    request = requests[plan.name]
    notes = _stale_note(sets[plan.name], request.lock) + _chosen_note(plan, sets)
    if plan.outcome is not None:
        return Rebuilt(plan.outcome, notes=(*notes, *plan.outcome.notes))
    drifted = tuple(f"{one.env_id} has drifted in {len(one.drifts)} places; built anew" for one in plan.drifted)
    request = replace(request, drifted=tuple(one.env_id for one in plan.drifted))
    if wheelhouse is not None:
        request = _with_wheels(workspace, request, wheelhouse, on_progress)
    run = _start(workspace, request, plan.machine, on_progress=on_progress)
    outcome = from_json(EnvOutcome, follow(workspace, run, on_progress=on_progress))
    return Rebuilt(outcome, run.run_id, (*notes, *drifted, *outcome.notes))


def _request(workspace: Workspace, wanted: PinnedSet) -> EnvRequest:
    text = wanted.lock_text()
    parse_lock(text, label=str(wanted.lock))
    return EnvRequest(
        name=wanted.name,
        lock=text,
        label=str(wanted.lock),
        direct=_direct(wanted),
        sources=configured_sources(workspace.config.env, workspace.folder, os.environ),
    )


def _direct(wanted: PinnedSet) -> tuple[str, ...]:
    """The distributions whose import proves the environment; () where only the lock can tell."""
    if not wanted.wanted.is_file():
        return ()
    text = read(wanted.wanted)
    return parse_options(text, label=str(wanted.wanted)).direct or requirement_names(text)


def _stale_note(wanted: PinnedSet, lock: str) -> tuple[str, ...]:
    """A sentence where NAME.in was changed after it was locked."""
    locked = parse_options(lock, label=str(wanted.lock)).set_sha256
    if not locked or not wanted.wanted.is_file() or sha256_of(read(wanted.wanted)) == locked:
        return ()
    return (f"{wanted.wanted.name} was changed since it was locked: `opsctl env lock {wanted.name}` takes it up",)


def _chosen_note(plan: EnvPlan, sets: dict[str, PinnedSet]) -> tuple[str, ...]:
    """Which set was taken, where that was left to the driver."""
    if len(sets) == 1:
        return ()
    why = f"driver {plan.driver}" if plan.driver else "no NVIDIA driver on the target"
    return (f"{why}: the set is {plan.name}, of {', '.join(sets)}",)


def _with_wheels(workspace: Workspace, request: EnvRequest, folder: Path, on_progress: OnProgress) -> EnvRequest:
    from opsctl.ops import wheelhouse

    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint=f"`opsctl env fetch {folder}` makes and fills it")
    wheels = wheelhouse.chosen(folder, parse_lock(request.lock, label=request.label), label=request.label)
    return replace(request, sources=wheelhouse.bring(workspace, folder, wheels, on_progress=on_progress))


def _start(workspace: Workspace, request: EnvRequest, machine: str, *, on_progress: OnProgress) -> RunRecord:
    from opsctl.ops.tools import bring, uv_for  # a rebuild with nothing to do needs none of it
    from opsctl.records.run import RunRecord

    local = uv_for(workspace, machine, on_progress=on_progress)
    request = replace(_with_certificates(request), tool=local.tool)
    body = {"env": to_json(request)}
    with starting("env-rebuild", lambda text: on_progress({"text": text})):
        answer = workspace.client.call("env-rebuild", body)
        if answer["needs_tool"]:
            bring(workspace, local, on_progress=on_progress)
            answer = workspace.client.call("env-rebuild", body)
    run = from_json(RunRecord, answer["run"])
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    return run


def _with_certificates(request: EnvRequest) -> EnvRequest:
    """The request with the certificates themselves, where the file that is configured is on this machine."""
    bundle = request.sources.ca_bundle
    if not bundle or not Path(bundle).is_file():
        return request  # then it is one of the target's own
    return replace(request, ca_pem=Path(bundle).read_text(), sources=replace(request.sources, ca_bundle=""))
