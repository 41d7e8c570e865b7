"""Hosts start processes and hand back byte channels. The only place where commands begin."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Protocol

from opsctl.errors import MissingTool, TimedOut
from opsctl.records.call import Outcome
from opsctl.target.command import Argv

_CHUNK_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 1 << 16
_WRITE_GRACE_S = 0.5
_END_GRACE_S = 2.0


class Channel(Protocol):
    """One process on a host: bytes in, bytes out, and a typed outcome."""

    def write(self, data: bytes) -> None:
        """Send all of `data` to its stdin; raises BrokenPipeError if it is gone."""

    def close_input(self) -> None:
        """End its stdin."""

    def read(self, timeout_s: float) -> bytes:
        """Some bytes of its stdout, b"" at the end; raises TimedOut after `timeout_s` of silence."""

    def error_tail(self) -> str:
        """The last part of its stderr."""

    def outcome(self, timeout_s: float) -> Outcome:
        """How it ended; a wait longer than `timeout_s` is the outcome timed_out."""

    def close(self) -> None:
        """Give it up: end what still runs on our side."""


class Host(Protocol):
    """Where processes start."""

    @property
    def label(self) -> str:
        """How messages name it."""

    def start(self, argv: Argv) -> Channel:
        """Start a process with pipes on its three streams."""

    def interactive_argv(self, argv: Argv) -> Argv:
        """The local argv that runs `argv` there on the caller's own terminal."""


class LocalChannel:
    """A child process of ours, with its stderr drained so that it can never block on it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._writing = threading.Lock()
        self._errors: collections.deque[bytes] = collections.deque(maxlen=_STDERR_TAIL_BYTES // 1024)
        self._drain = threading.Thread(target=self._drain_errors, name="stderr", daemon=True)
        self._drain.start()

    def _drain_errors(self) -> None:
        assert self._process.stderr is not None
        descriptor = self._process.stderr.fileno()
        with contextlib.suppress(OSError, ValueError):  # closed under us: the process was given up
            while data := os.read(descriptor, 1024):
                self._errors.append(data)

    def write(self, data: bytes) -> None:
        """Send all of `data`."""
        assert self._process.stdin is not None
        rest = memoryview(data)
        with self._writing:
            while rest:
                rest = rest[os.write(self._process.stdin.fileno(), rest) :]

    def close_input(self) -> None:
        """End its stdin."""
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.close()

    def read(self, timeout_s: float) -> bytes:
        """Some bytes of its stdout."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            raise TimedOut(f"no output for {timeout_s:g} s")
        return os.read(self._process.stdout.fileno(), _CHUNK_BYTES)

    def error_tail(self) -> str:
        """The last part of its stderr; waits a moment for the stream's end if the process is over."""
        if self._process.poll() is not None:
            self._drain.join(timeout=1.0)
        return b"".join(self._errors).decode(errors="replace")

    def outcome(self, timeout_s: float) -> Outcome:
        """How it ended."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome("timed_out")
        return Outcome("killed", signal=-status) if status < 0 else Outcome("exited", code=status)

    def close(self) -> None:
        """End the process and everything in its group, then free the pipes."""
        if self._writing.acquire(timeout=_WRITE_GRACE_S):
            self._writing.release()
        else:  # it does not read, and a writer waits for it
            self._signal(signal.SIGKILL)
        self.close_input()
        if self.outcome(0.2).kind == "timed_out":
            self._signal(signal.SIGTERM)  # an agent ends its children then
        if self.outcome(_END_GRACE_S).kind == "timed_out":
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._drain.join(timeout=1.0)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended in between
            os.killpg(self._process.pid, number)


@dataclass(frozen=True)
class LocalHost:
    """This machine."""

    label: str = "this machine"

    def start(self, argv: Argv) -> LocalChannel:
        """Start a child in a session of its own."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(argv, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except FileNotFoundError as error:
            raise MissingTool(f"{argv[0]} is not installed on this machine", hint="install it") from error
        return LocalChannel(process)

    def interactive_argv(self, argv: Argv) -> Argv:
        """The argv itself."""
        return argv
