"""`opsctl env adopt`, `archives` and `restore`: environments made by hand, saved and brought back."""

from __future__ import annotations

from typing import Annotated

import typer

from opsctl import ui
from opsctl.cli.env_view import adopted_text, archive_row
from opsctl.cli.options import ConfigPath, Json, TargetName, named, workspace
from opsctl.cli.progress import teller


def add_to(env: typer.Typer) -> typer.Typer:
    """The same noun with these verbs."""
    env.command()(adopt)
    env.command()(archives)
    env.command()(restore)
    return env


def adopt(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The virtual environment's folder on the target.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the new set; default: the folder's.")] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Save a virtual environment made by hand in an archive, and write the set and lock that would rebuild it.

    What no lock can bring back is named: local wheels, git checkouts, editable installs, edited files.

    Example: opsctl env adopt /srv/venv --name works
    """
    from opsctl.ops.env_adopt import adopt as save

    found = save(workspace(config, target), path, name, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(adopted_text(found))


def archives(
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """List the environments that adopt saved on the target, newest first.

    Example: opsctl env archives
    """
    from opsctl.ops.env_adopt import archives as listing

    found = listing(workspace(config, target))
    if as_json:
        ui.document(found)
        return
    ui.table(("archive", "of", "python", "files", "size", "packed", "age", "by"), [archive_row(one) for one in found])


def restore(
    archive: Annotated[
        str, typer.Argument(metavar="ARCHIVE", callback=named, help="Id of an adopted environment, or its beginning.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Unpack here; default: where it lay.")] = "",
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Bring an adopted environment back where it lay, every file checked; nothing that stands there is touched.

    Example: opsctl env restore venv-20261129-201500
    """
    from opsctl.ops.env_adopt import restore as bring_back

    found = bring_back(workspace(config, target), archive, to, on_progress=teller(quiet=as_json))
    if as_json:
        ui.document(found)
        return
    for note in found.notes:
        ui.say(f"note: {note}")
    ui.text(
        f"{found.archive_id}: {found.num_files} files, {found.size_mib:.0f} MiB, in {found.seconds:.1f} s\n{found.path}"
    )
