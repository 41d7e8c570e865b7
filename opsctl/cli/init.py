"""`opsctl init`: the first opsctl.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsctl import ui
from opsctl.cli.options import Json
from opsctl.errors import UsageError


def init(
    local: Annotated[bool, typer.Option("--local", help="Write the settings for this machine.")] = False,
    as_json: Json = False,
) -> None:
    """Write a complete, commented opsctl.yaml into the current folder; one that stands is kept.

    Example: opsctl init --local
    """
    if not local:
        raise UsageError("init needs to know for which target", hint="`opsctl init --local` is for this machine")
    from opsctl.ops.init import init_local

    path, is_new = init_local(Path.cwd())
    if as_json:
        ui.document({"path": str(path), "is_new": is_new})
        return
    ui.text(f"wrote {path}" if is_new else f"{path} stands; kept as it is")
