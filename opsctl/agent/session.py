"""One call from a client: JSON lines in and out, beats both ways, and an end to our children.

A client that is killed sends EOF, one that is frozen sends nothing: in both cases this process
ends its children and itself.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from opsctl import __version__
from opsctl.agent.home import Home
from opsctl.errors import OpsctlError, ProtocolError
from opsctl.records import PROTOCOL, to_json

BEAT_PERIOD_S = 1.0
EOF_GRACE_S = 1.0
SILENCE_LIMIT_S = 15.0
_ABANDONED_STATUS = 75


class Session:
    """The agent's side of one call."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._write_lock = threading.Lock()
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._is_answered = threading.Event()
        self.is_cancelled = threading.Event()

    # -- out ----------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Write one message whole; blocks while the client does not read."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._write_lock:
            while data:
                data = data[os.write(self._output_fd, data) :]

    def hello(self) -> None:
        """Say who we are, before anything else."""
        python = ".".join(map(str, sys.version_info[:3]))
        self.send({"type": "hello", "protocol": PROTOCOL, "version": __version__, "python": python, "pid": os.getpid()})

    def progress(self, text: str, *, done: float | None = None, total: float | None = None) -> None:
        """Tell how far a step has come; `done` and `total` share one unit."""
        self.send({"type": "progress", "text": text, "done": done, "total": total})

    def record(self, kind: str, record: Any) -> None:
        """Send one record of a stream."""
        self.send({"type": "record", "kind": kind, "record": to_json(record)})

    def result(self, value: Any) -> None:
        """Send the answer; the last message of a call."""
        self._is_answered.set()
        self.send({"type": "result", "result": to_json(value)})

    def error(self, error: OpsctlError) -> None:
        """Send a failure; the last message of a call."""
        self._is_answered.set()
        kind = type(error).__name__
        self.send({"type": "error", "error": {"kind": kind, "message": error.message, "hint": error.hint}})

    # -- in -----------------------------------------------------------------------------------

    def start(self) -> dict[str, Any]:
        """Begin listening and beating; returns the client's first line."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        line = self._lines.get()
        if line is None:
            raise ProtocolError("the client left before it asked for anything")
        request = json.loads(line)
        if request.get("protocol") != PROTOCOL:
            raise ProtocolError(f"the client speaks protocol {request.get('protocol')}, this agent {PROTOCOL}")
        return dict(request)

    def uploads(self) -> Iterator[bytes]:
        """The pieces of data that the client sends after its request, up to its end mark."""
        while True:
            line = self._lines.get()
            if line is None:
                raise ProtocolError("the upload ended in the middle")
            message = json.loads(line)
            if message.get("type") == "data":
                yield base64.b64decode(message["data"])
            elif message.get("type") == "end":
                return

    def _listen(self) -> None:
        pending = b""
        last_byte = time.monotonic()
        while True:
            ready, _, _ = select.select([self._input_fd], [], [], BEAT_PERIOD_S)
            if ready:
                data = os.read(self._input_fd, 1 << 16)
                if not data:
                    break
                last_byte = time.monotonic()
                *lines, pending = (pending + data).split(b"\n")
                self._accept(lines)
            elif time.monotonic() - last_byte > SILENCE_LIMIT_S:
                self.abandon()
        self._lines.put(None)
        self.is_cancelled.set()
        time.sleep(EOF_GRACE_S)
        self.abandon()

    def _accept(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == b"{}":  # a beat
                continue
            self._lines.put(line)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # the client went away; `_listen` sees that too and ends us
            while not self._is_answered.wait(BEAT_PERIOD_S):
                self.send({"type": "beat"})

    # -- children -------------------------------------------------------------------------------

    def spawn(self, argv: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:
        """Start a child that does not outlive this call."""
        child = subprocess.Popen(argv, start_new_session=True, **options)
        self._children.add(child)
        return child

    def end_children(self) -> None:
        """Kill what `spawn` started and what those started in their groups."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(child.pid, signal.SIGKILL)

    def abandon(self) -> None:
        """End our children and ourselves at once, since nobody listens any more."""
        self.end_children()
        os._exit(_ABANDONED_STATUS)


class Call:
    """What a verb's handler gets: the home, the request, and the way to answer."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        self.session = session
        self.home = Home.at(request["home"])
        self.operator: str = request.get("operator", "unknown")
        self.request: dict[str, Any] = request.get("request", {})
