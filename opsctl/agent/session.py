"""One call from a client: JSON lines in and out, beats both ways, and an end to our children.

A client that is killed sends EOF, one that is frozen sends nothing: in both cases this process
ends its children and itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opsctl import __version__
from opsctl.agent.home import Home
from opsctl.errors import OpsctlError, ProtocolError
from opsctl.formats.frames import Frame, FrameReader, frame
from opsctl.records.call import PROTOCOL, to_json

BEAT_PERIOD_S = 1.0
EOF_GRACE_S = 1.0
SILENCE_LIMIT_S = 15.0
_ABANDONED_STATUS = 75
_STRAY_ROUNDS = 20
# stands in the environment of a call's children
CALL_VARIABLE = "OPSCTL_CALL"


class Session:
    """The agent's side of one call."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._write_lock = threading.Lock()
        self._messages: queue.Queue[Frame | None] = queue.Queue()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._mark = f"{CALL_VARIABLE}={os.getpid()}-{os.urandom(8).hex()}"
        self._is_answered = threading.Event()
        self.is_cancelled = threading.Event()
        self.on_signal: Callable[[int], None] = lambda number: None  # called at once, from another thread

    # -- out ----------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        with self._write_lock:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._output_fd, rest) :]

    def send(self, message: Frame) -> None:
        """Write one message whole; blocks while the client does not read."""
        self._write(frame(message))

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

    def raw(self, kind: str, data: bytes) -> None:
        """Send bytes as they are; the client gets them as a record whose value is bytes."""
        self._write(frame({"type": "raw", "kind": kind}, data))

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
        """Begin listening and beating; returns the client's first message."""
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        request = self._messages.get()
        if request is None:
            raise ProtocolError("the client left before it asked for anything")
        if request.get("protocol") != PROTOCOL:
            raise ProtocolError(f"the client speaks protocol {request.get('protocol')}, this agent {PROTOCOL}")
        return request

    def messages(self) -> Iterator[Frame]:
        """What the client sends after its request, up to its end mark; data stands under `data`.

        The client sends on as its data is used, that is, as the next message is asked for.
        """
        while True:
            message = self._messages.get()
            if message is None:
                raise ProtocolError("the upload ended in the middle")
            if message.get("type") == "end":
                return
            yield message
            if "data" in message:
                self.send({"type": "credit", "bytes": len(message["data"])})

    def uploads(self) -> Iterator[bytes]:
        """The pieces of data that the client sends after its request, up to its end mark."""
        for message in self.messages():
            yield message["data"]

    def _listen(self) -> None:
        with contextlib.suppress(ProtocolError):  # no client of ours: as good as gone
            self._receive()
        self._messages.put(None)
        self.is_cancelled.set()
        time.sleep(EOF_GRACE_S)
        self.abandon()

    def _receive(self) -> None:
        """Sort what comes in; returns when the client is gone or silent."""
        frames = FrameReader()
        last_byte = time.monotonic()
        while True:
            ready, _, _ = select.select([self._input_fd], [], [], BEAT_PERIOD_S)
            if ready:
                data = os.read(self._input_fd, 1 << 16)
                if not data:
                    return
                last_byte = time.monotonic()
                for message in frames.feed(data):
                    self._accept(message)
            elif time.monotonic() - last_byte > SILENCE_LIMIT_S:
                return

    def _accept(self, message: Frame) -> None:
        if message.get("type") == "signal":
            self.on_signal(int(message["number"]))  # not behind data that nobody reads yet
        else:
            self._messages.put(message)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # the client went away; `_listen` sees that too and ends us
            while not self._is_answered.wait(BEAT_PERIOD_S):
                self.send({"type": "beat"})

    # -- children -------------------------------------------------------------------------------

    def spawn(
        self, argv: tuple[str, ...], *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a child that does not outlive this call."""
        name, _, value = self._mark.partition("=")
        env = {**os.environ, **(environment or {}), name: value}
        child = subprocess.Popen(argv, start_new_session=True, env=env, **options)
        self._children.add(child)
        return child

    def end_children(self) -> None:
        """Kill what `spawn` started and what those started in their groups."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(child.pid, signal.SIGKILL)

    def end_strays(self) -> None:
        """Kill also what left those groups, such as the ranks of torchrun: all that carry this call's mark."""
        if not self._children:
            return
        from opsctl.agent.processes import environ, pids  # only where a call breaks off

        for _ in range(_STRAY_ROUNDS):  # one that is killed may just have started another
            strays = [pid for pid in pids() if self._mark.encode() in environ(pid)]
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # ended, or became another user's
                    os.kill(pid, signal.SIGKILL)

    def abandon(self) -> None:
        """End our children and ourselves at once, since nobody listens any more."""
        self.end_children()
        self.end_strays()
        os._exit(_ABANDONED_STATUS)


class Call:
    """What a verb's handler gets: the home, the request, and the way to answer."""

    def __init__(self, session: Session, request: dict[str, Any]) -> None:
        self.session = session
        self.home = Home.at(request["home"])
        self.home.share()
        self.operator: str = request.get("operator", "unknown")
        self.request: dict[str, Any] = request.get("request", {})
