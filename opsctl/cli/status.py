"""`opsctl status`: one page on targets, environments, caches and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, workspace
from opsctl.errors import TargetError
from opsctl.records.call import to_json

if TYPE_CHECKING:
    from opsctl.ops.status import TargetStatus


def status(config: ConfigPath = None, target: TargetName = None, as_json: Json = False) -> None:
    """Show each target on one page: reach, environment, compile caches, runs, and what to do next.

    Exits 4 if no target could be reached.

    Example: opsctl status
    """
    from opsctl.ops.sets import what_is_missing
    from opsctl.ops.status import next_steps
    from opsctl.ops.status import status as look_at_all

    space = workspace(config, target)
    missing = what_is_missing(space)
    found = [(one, next_steps(one, space.config, missing_set=missing)) for one in look_at_all(space, only=target)]
    if as_json:
        ui.document({"targets": [target_json(one, steps) for one, steps in found]})
    else:
        from opsctl.cli.status_page import page

        for one, steps in found:
            ui.show(page(one, steps))
    if all(one.reach_s is None for one, _ in found):
        raise typer.Exit(TargetError.exit_code)


def target_json(found: TargetStatus, steps: list[str]) -> dict[str, Any]:
    """One target; runs have the keys of `train list --json`."""
    from opsctl.cli.train_view import status_json

    body = to_json(found)
    active = found.active_env.env_id if found.active_env else None
    body["runs"] = [status_json(one) for one in found.runs]
    return {**body, "is_reached": found.reach_s is not None, "active_env": active, "next": steps}
