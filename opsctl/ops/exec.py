"""Runs one command inside the target: its streams both ways, signals, a time limit; or the words for a terminal."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator

from opsctl.errors import ProtocolError
from opsctl.formats.frames import CHUNK_BYTES
from opsctl.ops.workspace import Workspace
from opsctl.records.call import Outcome, from_json
from opsctl.target.client import Message
from opsctl.target.command import Argv

_REACH_LIMIT_S = 30.0
LOGIN_SHELL: Argv = ("sh", "-c", 'exec "${SHELL:-/bin/sh}" -l')


class CommandInput:
    """What goes to a running command: the bytes of a descriptor, if one is given, and signals at any time."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor
        self._signals: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # its put is safe in a handler
        self._is_open = threading.Event()

    def signal(self, number: int) -> bool:
        """Send a signal to the command; False if it does not run yet, or no longer."""
        if self._is_open.is_set():
            self._signals.put({"type": "signal", "number": number})
        return self._is_open.is_set()

    def data(self) -> Iterator[bytes]:
        """The bytes, as they come."""
        while self.descriptor is not None and (data := os.read(self.descriptor, CHUNK_BYTES)):
            yield data

    def signals(self) -> Iterator[Message]:
        """The signals, as they come, until the command is over."""
        self._is_open.set()
        while (message := self._signals.get()) is not None:
            yield message

    def close(self) -> None:
        """The command is over."""
        self._is_open.clear()
        self._signals.put(None)


def run(
    workspace: Workspace,
    argv: Argv,
    *,
    on_output: Callable[[str, bytes], None],
    inputs: CommandInput | None = None,
    timeout_s: float | None = None,
    env: str = "",
) -> Outcome:
    """Run `argv` and say how it ended; `on_output` gets the stream's name (stdout or stderr) and its bytes.

    `env` is the id of an environment whose programs come first, or "active". After `timeout_s` the command is ended.
    """
    given = inputs or CommandInput(None)
    request = {"argv": list(argv), "stdin": given.descriptor is not None, "timeout_s": timeout_s, "env": env}
    stream = workspace.client.stream("exec", request, uploads=given.data(), controls=given.signals())
    try:
        for message in stream:
            if message["type"] == "record":
                on_output(message["kind"], message["record"])
            elif message["type"] == "result":
                return from_json(Outcome, message["result"])
    finally:
        given.close()
        stream.close()
    raise ProtocolError(f"exec on {workspace.target.label} ended without an outcome")


def terminal_argv(workspace: Workspace, argv: Argv) -> Argv:
    """The local words that run `argv`, or a login shell, on the caller's terminal; raises TargetError if it cannot."""
    target = workspace.target
    channel = target.start(("true",))
    try:
        channel.close_input()
        outcome = channel.outcome(_REACH_LIMIT_S)
    finally:
        channel.close()
    problem = target.entry_problem() if outcome.code != 0 else None
    if problem is not None:
        raise problem
    return target.interactive_argv(argv or LOGIN_SHELL)
