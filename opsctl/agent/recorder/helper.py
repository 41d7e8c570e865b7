"""One bounded child of the recorder; never two at once, never waited for.

It tells the recorder something on its stdout, or is told something on its stdin and speaks to others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from opsctl.agent.recorder.loop import READ, Loop
from opsctl.agent.recorder.spawn import die_with_parent

_CHUNK_BYTES = 1 << 16
_OUTPUT_LIMIT_BYTES = 1 << 18


class Helper:
    """Starts a child on request and hands on what it printed once it has ended.

    One that `is_heard` dies with the recorder; another may finish what it has to say to others.
    """

    def __init__(self, loop: Loop, *, limit_s: float, is_heard: bool = True) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._is_heard = is_heard
        self._child: subprocess.Popen[bytes] | None = None
        self._output_fd: int | None = None
        self._output = b""
        self._on_done: Callable[[str], object] = lambda text: None
        self._said: set[str] = set()

    @property
    def pid(self) -> int | None:
        """The child that works now; one that cannot be killed stays, and then no second one is started."""
        return self._child.pid if self._child else None

    def start(self, argv: Sequence[str], on_done: Callable[[str], object], *, told: bytes = b"") -> bool:
        """Start the child unless one works already; says whether it was started. `told` must fit in a pipe."""
        if self._child is not None:
            return False
        try:
            child = self._spawn(argv)
        except OSError as error:  # no memory for a process, or no such program: the next time may have better luck
            self._complain(f"{argv[0]} cannot be started: {error.strerror}")
            return False
        self._child, self._output, self._on_done = child, b"", on_done
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it failed at once; its exit is all there is to know
                child.stdin.write(told)
                child.stdin.close()
        if child.stdout is not None:
            self._output_fd = os.dup(child.stdout.fileno())
            child.stdout.close()
            os.set_blocking(self._output_fd, False)
            self._loop.watch(self._output_fd, READ, self._readable)
        self._loop.later(self._limit_s, lambda: self._kill(child.pid))
        return True

    def _spawn(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        return subprocess.Popen(
            argv,
            stdin=nowhere if self._is_heard else pipe,
            stdout=pipe if self._is_heard else nowhere,
            stderr=nowhere,
            start_new_session=True,
            preexec_fn=die_with_parent if self._is_heard else None,
        )

    def _complain(self, text: str) -> None:
        """Say it once: a helper is asked for again and again."""
        if text not in self._said:
            self._said.add(text)
            self._loop.complain(text)

    def _readable(self, events: int) -> None:
        self._read()

    def _read(self) -> bool:
        """Take what is there; says whether more may come at once."""
        if self._output_fd is None:
            return False
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output_fd, _CHUNK_BYTES)
        self._output = (self._output + data)[-_OUTPUT_LIMIT_BYTES:]
        if not data:
            self._loop.forget(self._output_fd)
        return bool(data)

    def _kill(self, pid: int) -> None:
        if pid == self.pid:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(pid, signal.SIGKILL)

    def ended(self, status: int) -> None:
        """The child was reaped."""
        if self._child is None:
            return
        self._child.returncode = os.waitstatus_to_exitcode(status)
        while self._read():
            pass
        if self._output_fd is not None:
            self._loop.forget(self._output_fd)
            os.close(self._output_fd)
        self._child, self._output_fd = None, None
        self._on_done(self._output.decode(errors="replace"))

    def end(self) -> None:
        """Kill the child without waiting for it."""
        self._on_done = lambda text: None
        if self._child is not None:
            self._kill(self._child.pid)
