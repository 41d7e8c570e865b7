"""Programs that opsctl brings to a target: found on this machine, pushed once, checked by hash there."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from opsctl.errors import MissingTool
from opsctl.ops.workspace import Workspace
from opsctl.records.call import to_json
from opsctl.records.env import Tool

_CHUNK_BYTES = 1 << 19


@dataclass(frozen=True)
class LocalTool:
    """A program on this machine, ready to be brought."""

    path: Path
    tool: Tool

    def pieces(self) -> Iterator[bytes]:
        """Its bytes."""
        with self.path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield data


def local_uv() -> LocalTool:
    """The uv that opsctl itself depends on."""
    import uv

    path = Path(uv.find_uv_bin())
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return LocalTool(path, Tool(f"uv-{version('uv')}-{sha256[:12]}", sha256, path.stat().st_size))


def uv_for(workspace: Workspace, machine: str) -> LocalTool:
    """uv for a target whose machine is of this kind; raises MissingTool where ours is for another."""
    local = local_uv()
    if machine != platform.machine():
        raise MissingTool(
            f"uv here is for {platform.machine()}, {workspace.target.label} is {machine}",
            hint="run this command from a machine of the same kind as the target",
        )
    return local


def bring(workspace: Workspace, local: LocalTool, *, on_progress: Callable[[dict[str, Any]], None]) -> None:
    """Push the program to the target; the agent refuses it if its hash differs there."""
    request = {"tool": to_json(local.tool)}
    workspace.client.call("put-tool", request, uploads=local.pieces(), on_progress=on_progress)
