"""`opsctl env diff` and `export`: what locks and environments hold, beside each other and for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsctl import ui
from opsctl.cli.env import EnvId
from opsctl.cli.env_view import diff_text
from opsctl.cli.options import ConfigPath, Json, TargetName, named, workspace
from opsctl.records.call import to_json

_SIDE = "A lock file, a set, the id of an environment, active, TARGET: or TARGET:ID."


def add_to(env: typer.Typer) -> typer.Typer:
    """The same noun with these verbs."""
    env.command()(diff)
    env.command()(export)
    return env


def diff(
    a: Annotated[str, typer.Argument(metavar="A", callback=named, help=_SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", callback=named, help="The same, of the other side.")],
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Compare two locks or environments: versions, hashes, and files as they are now; exit code 1 if they differ.

    Example: opsctl env diff cpu active

    Example: opsctl env diff box-a: box-b:
    """
    from opsctl.ops.env_diff import diff as compare

    found = compare(workspace(config, target), a, b)
    ui.document({"is_same": found.is_same, **to_json(found)}) if as_json else ui.text(diff_text(found))
    if not found.is_same:
        raise typer.Exit(1)


def export(
    env_id: EnvId = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write into this file; default: print it.")
    ] = None,
    hashes: Annotated[bool, typer.Option("--hashes", help="Add the hashes that the lock names.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Write what an environment holds now as a requirements file, which pip and uv read without opsctl.

    Example: opsctl env export -o requirements.txt
    """
    from opsctl.ops.env_export import export as read

    found = read(workspace(config, target), env_id, has_hashes=hashes, output=output)
    for note in found.notes:
        ui.say(f"note: {note}")
    if as_json:
        ui.document(found)
    elif output:
        ui.say(f"{output}: {found.text.count(chr(10))} rows")
    else:
        ui.text(found.text.rstrip())
