"""One start of the job: its output and its end, until no process of it is left and its terminal is drained."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable

from opsctl.agent.recorder.holder import Job, read_status
from opsctl.agent.recorder.loop import READ, Loop
from opsctl.agent.signals import Ending, Members

LAST_WORDS_S = 0.5  # how long the news of the job's end waits for output of what it left behind
GIVE_UP_S = 30.0  # after this long under SIGKILL a process sits in the kernel, and nobody can end it
_STEP_S = 0.05
_LONGEST_STEP_S = 0.5
_CHUNK_BYTES = 1 << 16
_BURST_BYTES = 1 << 18


def _read_burst(descriptor: int) -> tuple[bytes, bool]:
    """What lies ready, up to a limit, and whether the other end has been left by all."""
    pieces: list[bytes] = []
    size = 0
    while size < _BURST_BYTES:
        try:
            piece = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return b"".join(pieces), False
        except OSError:  # EIO
            piece = b""
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), False


class RunningJob:
    """Calls `on_exit(status)` when the first process has ended, then `on_gone()` when all are gone."""

    def __init__(
        self,
        loop: Loop,
        job: Job,
        members: Members,
        *,
        leftover_grace_s: float,
        on_output: Callable[[bytes], None],
        on_exit: Callable[[int], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._job = job
        self._members = members
        self._leftover_grace_s = leftover_grace_s
        self._on_output = on_output
        self._on_exit = on_exit
        self._on_gone = on_gone
        self._ending: Ending | None = None
        self._step_s = _STEP_S
        self._status: int | None = None
        self._is_told = False
        self._is_terminal_open = True
        loop.watch(job.terminal_fd, READ, self._read)
        loop.watch(job.status_fd, READ, self._hear)

    @property
    def pid(self) -> int:
        """The first process."""
        return self._job.process.pid

    @property
    def holder_pid(self) -> int:
        """The process that holds the terminal's session; no part of the run."""
        return self._job.holder_pid

    @property
    def is_running(self) -> bool:
        """Whether the first process has not ended yet."""
        return self._status is None

    @property
    def unkillable(self) -> tuple[int, ...]:
        """What could not be ended."""
        return tuple(one.pid for one in self._ending.left) if self._ending else ()

    # -- terminal -------------------------------------------------------------------------------

    def type(self, keys: bytes) -> None:
        """Hand keys to the job as if typed; what it does not read in time is dropped."""
        with contextlib.suppress(OSError):  # its terminal is full or gone
            os.write(self._job.terminal_fd, keys)

    def _read(self, events: int = READ) -> None:
        data, is_left = _read_burst(self._job.terminal_fd)
        if data:
            self._on_output(data)
        if is_left:
            self._terminal_is_left()

    def _terminal_is_left(self) -> None:
        """All have closed the terminal; a job that lives may open it again, one that ended will not."""
        self._loop.forget(self._job.terminal_fd)
        if self._status is None:
            self._loop.later(1.0, self._watch_again)
        else:
            self._is_terminal_open = False
            self._tell()

    def _watch_again(self) -> None:
        if self._status is None:
            self._loop.watch(self._job.terminal_fd, READ, self._read)

    # -- end --------------------------------------------------------------------------------------

    def end(self, grace_s: float) -> None:
        """Ask all processes to end, and kill what is left after `grace_s`; a second call can only shorten it."""
        deadline = time.monotonic() + grace_s
        if self._ending is not None:
            self._ending.deadline = min(self._ending.deadline, deadline)
            return
        self._ending = Ending(self._members, deadline=deadline)
        self._step_s = _STEP_S
        self._step()

    def _hear(self, events: int) -> None:
        """The holder tells the status; one that was killed leaves the job to us, to be reaped."""
        self._loop.forget(self._job.status_fd)
        status = read_status(self._job.status_fd)
        if status is not None:
            self.exited(status)

    def exited(self, status: int) -> None:
        """The first process ended with this wait status; only the first news of it counts."""
        if self._status is not None:
            return
        self._status = status
        self._loop.watch(self._job.terminal_fd, READ, self._read)
        self._loop.later(LAST_WORDS_S, self._tell)
        self._read()
        if self._ending is None:  # it ended by itself; who asked it to end has said how long the rest may take
            self.end(self._leftover_grace_s)

    def _tell(self) -> None:
        if not self._is_told and self._status is not None:
            self._is_told = True
            self._on_exit(self._status)

    def _step(self) -> None:
        ending = self._ending
        assert ending is not None, "only `end` starts the steps"
        now = time.monotonic()
        is_empty = ending.step(now)
        if self._status is not None and (is_empty or now > ending.deadline + GIVE_UP_S):
            self._leave()
        else:
            self._step_s = min(self._step_s * 1.2, _LONGEST_STEP_S)
            self._loop.later(min(self._step_s, max(0.0, ending.deadline - now) or _STEP_S), self._step)

    def _leave(self) -> None:
        limit = time.monotonic() + LAST_WORDS_S
        while self._is_terminal_open and time.monotonic() < limit:
            select.select([self._job.terminal_fd], [], [], LAST_WORDS_S)
            self._read()
        self._tell()
        for descriptor in (self._job.terminal_fd, self._job.status_fd):
            self._loop.forget(descriptor)
            os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):  # somebody killed the holder before
            os.kill(self._job.holder_pid, signal.SIGKILL)
        self._on_gone()
