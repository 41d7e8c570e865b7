"""Moves files and trees between this machine and a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.errors import ProtocolError, UsageError
from opsctl.formats.transfer import Moved, Writer, landing, reading, size_of
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.target.client import Message

Tell = Callable[[Message], None]


def put(workspace: Workspace, source: Path, path: str, *, on_progress: Tell | None = None) -> Moved:
    """Copy a file or a tree of ours to `path` on the target; what stood there stays whole if that fails.

    A folder that stands there, or a `path` that ends in a slash, gets it under its own name.
    """
    if not source.exists():
        raise UsageError(f"there is no file {source}")
    request = {"path": path, "name": source.resolve().name, "num_bytes": size_of(source)}
    moved = workspace.client.call("put", request, uploads=reading(source), on_progress=on_progress)
    return from_json(Moved, moved)


def get(workspace: Workspace, path: str, destination: Path, *, on_progress: Tell | None = None) -> Moved:
    """Copy a file or a tree from the target to this machine; what stood there stays whole if that fails.

    A folder that stands at `destination` gets it under its own name.
    """
    messages = workspace.client.stream("get", {"path": path})
    try:
        size = next(messages)["record"]
        place = landing(destination, size["name"], is_folder_meant=False)
        with Writer(place) as writer:
            for message in messages:
                if message["type"] == "result":
                    return writer.finish()
                writer.take(message["record"])
                _tell(on_progress, place, writer.num_bytes, size)
    finally:
        messages.close()
    raise ProtocolError(f"get on {workspace.target.label} ended without a result")


def _tell(on_progress: Tell | None, place: Path, done: int, size: dict[str, Any]) -> None:
    if on_progress:
        on_progress({"text": f"writing {place}", "done": done, "total": size["num_bytes"]})
