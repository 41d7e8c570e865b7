"""Runs one command inside the target and passes its output on as it comes."""

from __future__ import annotations

import base64
from collections.abc import Callable

from opsctl.errors import ProtocolError
from opsctl.ops.workspace import Workspace
from opsctl.records import Outcome, from_json


def run(workspace: Workspace, argv: tuple[str, ...], *, on_output: Callable[[str, bytes], None]) -> Outcome:
    """Run `argv`; `on_output` gets the stream's name (stdout or stderr) and its bytes."""
    for message in workspace.client.stream("exec", {"argv": list(argv)}):
        if message["type"] == "record":
            on_output(message["kind"], base64.b64decode(message["record"]))
        elif message["type"] == "result":
            return from_json(Outcome, message["result"])
    raise ProtocolError(f"exec on {workspace.target.label} ended without an outcome")
