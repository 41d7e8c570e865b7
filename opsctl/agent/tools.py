"""Programs that the operator's side brings along, named by their hash and checked by it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from opsctl.agent.files import fsync_folder, sweep
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.agent.session import Call
from opsctl.agent.uploads import receive
from opsctl.errors import CommandFailed, MissingTool, UsageError
from opsctl.records.call import from_json
from opsctl.records.env import Tool

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


def has_tool(home: Home, tool: Tool) -> bool:
    """Whether the program is there in full length; its hash is checked when it is used."""
    path = home.tools / tool.name
    return path.is_file() and path.stat().st_size == tool.size


def tool_path(home: Home, tool: Tool | None) -> Path:
    """The program, its hash checked; raises MissingTool."""
    if tool is None:
        raise MissingTool("the request names no uv", hint="this is a fault of the client")
    path = home.tools / tool.name
    if not path.is_file() or digest(path) != tool.sha256:
        path.unlink(missing_ok=True)  # damaged: the next call brings it again
        raise MissingTool(f"{path} is missing or damaged", hint="run the command again; it is brought anew")
    return path


def put_tool(call: Call) -> Any:
    """Store the uploaded program under request["tool"]; raises CommandFailed if its hash differs."""
    tool = from_json(Tool, call.request["tool"])
    if not _NAME.match(tool.name):
        raise UsageError(f"not a name for a tool: {tool.name!r}")
    call.home.tools.mkdir(parents=True, exist_ok=True)
    sweep(call.home.tools, ".*.part")
    path = call.home.tools / tool.name
    part = path.with_name(f".{tool.name}.{os.getpid()}.part")
    try:
        receive(call, part, f"bringing {tool.name}", total=tool.size)
        if (found := digest(part)) != tool.sha256:
            raise CommandFailed(f"{tool.name} arrived with hash {found} instead of {tool.sha256}", hint="try again")
        part.chmod(0o755)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    fsync_folder(path.parent)
    return {"path": str(path)}
