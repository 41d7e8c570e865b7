"""The container of a target: build its image, bring it up, take it down, say how it is. Never prints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from opsctl.errors import Busy, CommandFailed, ContainerMissing, MissingTool, UsageError
from opsctl.ops.doctor import container_checks
from opsctl.ops.sets import pinned_set
from opsctl.ops.workspace import Workspace
from opsctl.records.doctor import Check
from opsctl.target.command import Argv, shell_words
from opsctl.target.container import Docker
from opsctl.target.target import refusal

if TYPE_CHECKING:
    from docker import DockerClient

Say = Callable[[str], None]

_HOST_STEP_LIMIT_S = 120.0
_ENTER_LIMIT_S = 60.0
_LIVE_STATES = ("starting", "running", "unwatched")


@dataclass(frozen=True)
class ContainerReport:
    """A container as it stands: `did` is created, started, resumed, stopped, removed or "" for nothing."""

    target: str
    container: str
    state: str
    did: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class BuildReport:
    """An image that was built."""

    image: str
    image_id: str
    seconds: float


def _require_container(workspace: Workspace) -> None:
    if not workspace.target.container.state_argv:
        raise UsageError(
            f"target {workspace.target.name!r} has no container",
            hint="set `container:` of the target, for example {docker: trainer}, or choose another with -t",
        )


def build(workspace: Workspace, *, say: Say = lambda _: None) -> BuildReport:
    """Build the image of the project's Dockerfile on the target's host."""
    _require_container(workspace)
    if not isinstance(workspace.target.container, Docker):
        kind = workspace.target.container.label.split()[0]
        raise UsageError(f"{kind} has no image to build", hint="`container build` is for targets with docker")
    from opsctl.ops import docker_container
    from opsctl.target.engine import engine

    started = time.monotonic()
    settings = workspace.config.docker
    name = settings.build_args.get("ENV_NAME") or pinned_set(workspace, None).name
    with engine(workspace.target) as client:
        image_id = docker_container.build(client, workspace.folder, settings, env_name=name, say=say)
    return BuildReport(settings.image, image_id, time.monotonic() - started)


def up(workspace: Workspace) -> ContainerReport:
    """Bring the container up: created (Docker only), started or resumed as it needs; one that runs is left alone."""
    _require_container(workspace)
    report = _docker_up(workspace) if isinstance(workspace.target.container, Docker) else _host_up(workspace)
    _ensure_enters(workspace)
    return report


def _docker_up(workspace: Workspace) -> ContainerReport:
    from opsctl.ops import docker_container
    from opsctl.target.engine import engine

    name, settings = _docker_name(workspace), workspace.config.docker
    with engine(workspace.target) as client:
        found = docker_container.find(client, name)
        did = "created" if found is None else {"running": "", "paused": "resumed"}.get(found.status, "started")
        if found is None:
            docker_container.make(client, name, settings)
        elif did:
            docker_container.start(found)
        return replace(_docker_report(workspace, client), did=did)


def _docker_name(workspace: Workspace) -> str:
    assert isinstance(workspace.target.container, Docker), "the caller has looked"
    return workspace.target.container.name


def _docker_report(workspace: Workspace, client: DockerClient) -> ContainerReport:
    from opsctl.ops import docker_container

    container = docker_container.find(client, _docker_name(workspace))
    if container is None:
        return _report(workspace, "missing", notes=("`opsctl container up` makes it",))
    facts, notes = docker_container.facts(container), docker_container.notes(container, workspace.config.docker)
    return replace(_report(workspace, container.status, notes=notes), facts=facts)


def _report(workspace: Workspace, state: str, *, did: str = "", notes: tuple[str, ...] = ()) -> ContainerReport:
    return ContainerReport(workspace.target.name, workspace.target.container.label, state, did, notes=notes)


def _host_up(workspace: Workspace) -> ContainerReport:
    """LXC and pct: the host starts what exists; making a system container is its owner's affair."""
    target = workspace.target
    state = target.container_state()
    if state.kind == "running":
        return _report(workspace, "running")
    if state.kind == "missing":
        hint = f"make it first ({_MAKERS[target.container.label.split()[0]]}), or correct `container:`"
        raise ContainerMissing(f"there is no container {target.container.label} on {target.host.label}", hint=hint)
    if state.kind not in ("stopped", "paused"):
        raise refusal(state, target) or CommandFailed(f"{target.container.label} is {state.detail}")
    did, argv = {
        "stopped": ("started", target.container.start_argv),
        "paused": ("resumed", target.container.resume_argv),
    }[state.kind]
    _host_step(workspace, argv)
    return _report(workspace, target.container_state().kind, did=did)


_MAKERS = {"lxc": "lxc-create on the host", "pct": "`pct create` or the web interface of Proxmox"}


def _host_step(workspace: Workspace, argv: Argv) -> None:
    answer = workspace.target.ask_host(argv, timeout_s=_HOST_STEP_LIMIT_S)
    if answer.outcome.code != 0:
        said = answer.errors.strip() or answer.output.strip() or str(answer.outcome)
        hint = "run it on the host to see more; `become:` of the target names words such as [sudo, -n]"
        raise CommandFailed(f"`{shell_words(argv)}` on {workspace.target.host.label} failed: {said}", hint=hint)


def _ensure_enters(workspace: Workspace) -> None:
    """A container that ends at once, or that lacks the user, is no container to work in."""
    target = workspace.target
    channel = target.start(("true",))
    try:
        channel.close_input()
        outcome = channel.outcome(_ENTER_LIMIT_S)
        said = channel.error_tail().strip()
    finally:
        channel.close()
    if outcome.code != 0:
        problem = target.entry_problem()
        detail = f"cannot enter container {target.container.label}: {said or outcome}"
        raise problem or CommandFailed(detail, hint="check `user:` of the container, and what its image starts")


def down(workspace: Workspace, *, force: bool = False) -> ContainerReport:
    """Stop the container, and remove it where it is Docker's (its volumes stay); raises Busy while runs live in it."""
    _require_container(workspace)
    if not force:
        _refuse_live_runs(workspace)
    return _docker_down(workspace) if isinstance(workspace.target.container, Docker) else _host_down(workspace)


def _refuse_live_runs(workspace: Workspace) -> None:
    label, kind = workspace.target.container.label, workspace.target.container_state().kind
    if kind == "paused":
        raise Busy(f"container {label} is paused: nobody can say what runs in it", hint=f"resume it first, or {_FORCE}")
    live = _live_runs(workspace) if kind == "running" else []
    if live:
        hint = f"`opsctl train stop` ends a run with its checkpoint; {_FORCE}"
        raise Busy(f"{', '.join(live)} would die with container {label}", hint=hint)


_FORCE = "--force takes the container down all the same"


def _live_runs(workspace: Workspace) -> list[str]:
    try:
        found = workspace.client.call("run-list")
    except (ContainerMissing, MissingTool):  # just gone, or without a Python: then no run of ours lives in it
        return []
    return [one["run"]["run_id"] for one in found if one["state"] in _LIVE_STATES]


def _docker_down(workspace: Workspace) -> ContainerReport:
    from opsctl.ops import docker_container
    from opsctl.target.engine import engine

    with engine(workspace.target) as client:
        container = docker_container.find(client, _docker_name(workspace))
        if container is None:
            return _report(workspace, "missing")
        docker_container.remove(container)
    return _report(workspace, "missing", did="removed", notes=("its volumes stay",))


def _host_down(workspace: Workspace) -> ContainerReport:
    target = workspace.target
    state = target.container_state()
    if state.kind in ("stopped", "missing"):
        return _report(workspace, state.kind)
    if problem := refusal(state, target):
        raise problem
    _host_step(workspace, target.container.stop_argv)
    return _report(workspace, target.container_state().kind, did="stopped")


def status(workspace: Workspace) -> ContainerReport:
    """The container as it stands, and what it lacks for GPUs and terminals."""
    _require_container(workspace)
    report = _docker_status(workspace) if isinstance(workspace.target.container, Docker) else _host_status(workspace)
    return replace(report, checks=container_checks(workspace)) if report.state == "running" else report


def _docker_status(workspace: Workspace) -> ContainerReport:
    from opsctl.target.engine import engine

    with engine(workspace.target) as client:
        return _docker_report(workspace, client)


def _host_status(workspace: Workspace) -> ContainerReport:
    state = workspace.target.container_state()
    if state.kind in ("no_tool", "unknown") and (problem := refusal(state, workspace.target)):
        raise problem
    return _report(workspace, state.kind)
