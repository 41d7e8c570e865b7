"""`opsctl container`: build the image, bring the container up, take it down, say how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.doctor import check_rows
from opsctl.cli.options import ConfigPath, Json, TargetName, noun, workspace

if TYPE_CHECKING:
    from opsctl.ops.container import ContainerReport

container = noun("container", "Build, start, stop and look at the container of a target.")


@container.command()
def build(config: ConfigPath = None, target: TargetName = None, as_json: Json = False) -> None:
    """Build the image of the project's Dockerfile on the target's host, with the pinned set of `env:` in it.

    Example: opsctl container build
    """
    from opsctl.ops.container import build as build_image

    report = build_image(workspace(config, target), say=ui.say)
    if as_json:
        ui.document(report)
        return
    ui.text(f"built {report.image} ({report.image_id.removeprefix('sha256:')[:12]}) in {report.seconds:.0f} s")


@container.command()
def up(config: ConfigPath = None, target: TargetName = None, as_json: Json = False) -> None:
    """Bring the container up: a Docker container is created as `docker:` says; what exists is started.

    Example: opsctl container up
    """
    from opsctl.ops.container import up as bring_up

    _show(bring_up(workspace(config, target)), as_json=as_json)


@container.command()
def down(
    force: Annotated[bool, typer.Option("--force", help="Also while runs live in it; they die.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Stop the container, and remove a Docker container (its volumes stay); refused while runs live in it.

    Example: opsctl container down
    """
    from opsctl.ops.container import down as take_down

    _show(take_down(workspace(config, target), force=force), as_json=as_json)


@container.command()
def status(config: ConfigPath = None, target: TargetName = None, as_json: Json = False) -> None:
    """Show the container's state, and what it lacks for GPUs and terminals; exits 1 if it is not as it should be.

    Example: opsctl container status
    """
    from opsctl.ops.container import status as look

    report = look(workspace(config, target))
    _show(report, as_json=as_json)
    if report.state != "running" or any(check.ok is False for check in report.checks):
        raise typer.Exit(1)


def _show(report: ContainerReport, *, as_json: bool) -> None:
    if as_json:
        ui.document(report)
        return
    ui.text(f"{report.container}: {_sentence(report)}")
    for name, value in report.facts.items():
        if value:
            ui.text(f"  {name:<8} {value}")
    if report.checks:
        ui.table(("check", "", "found", "what to do"), check_rows(report.checks))
    for note in report.notes:
        ui.say(f"note: {note}")


def _sentence(report: ContainerReport) -> str:
    return f"{report.did}, now {report.state}" if report.did and report.did != "removed" else report.did or report.state
