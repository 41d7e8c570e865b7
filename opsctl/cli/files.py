"""`opsctl put` and `opsctl get`: files and trees to a target and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, workspace
from opsctl.cli.progress import teller

if TYPE_CHECKING:
    from opsctl.formats.transfer import Moved


def put(
    source: Annotated[Path, typer.Argument(help="File or folder of this machine.")],
    path: Annotated[str, typer.Argument(help="Where to, on the target; into a folder that stands, or ends in /.")],
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Copy a file or folder to the target: checked by hash, whole or not at all, with its modes.

    Example: opsctl put data/ ~/data
    """
    from opsctl.ops.files import put as put_files

    moved = put_files(workspace(config, target), source, path, on_progress=teller(quiet=as_json))
    _show(moved, as_json=as_json)


def get(
    path: Annotated[str, typer.Argument(help="File or folder on the target.")],
    destination: Annotated[Path, typer.Argument(help="Where to, on this machine.")] = Path(),
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Copy a file or folder from the target: checked by hash, whole or not at all, with its modes.

    Example: opsctl get ~/.opsctl/runs/demo/exit.json
    """
    from opsctl.ops.files import get as get_files

    moved = get_files(workspace(config, target), path, destination, on_progress=teller(quiet=as_json))
    _show(moved, as_json=as_json)


def _show(moved: Moved, *, as_json: bool) -> None:
    if as_json:
        ui.document(moved)
        return
    files = "1 file" if moved.num_files == 1 else f"{moved.num_files} files"
    ui.text(f"{moved.path}: {files}, {moved.num_bytes / 2**20:.1f} MiB")
