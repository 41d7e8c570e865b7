"""One long-lived nvidia-smi that answers again and again, with a watchdog. Never two at once, never waited for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable

from opsctl.agent.recorder.loop import READ, Loop
from opsctl.agent.recorder.spawn import die_with_parent
from opsctl.detect.smi import COLUMNS, parse_csv, refused_column
from opsctl.records.events import GpuSample

FIRST_ANSWER_S = 30.0  # without persistence mode a driver wakes up eight GPUs first
SILENCE_S = 10.0
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_QUIET_S = 0.3
_ASKED = ("count", *COLUMNS)  # the number of GPUs tells when an answer is complete
_CHUNK_BYTES = 1 << 16
_PENDING_LIMIT_BYTES = 1 << 16

OnGpus = Callable[[tuple[GpuSample, ...], str], None]


def smi_argv(columns: tuple[str, ...], gpus: tuple[int, ...], period_s: float) -> tuple[str, ...]:
    """The command that answers every `period_s` until it is ended.

    >>> smi_argv(("index", "memory.used"), (5, 6), 0.5)[1:3]
    ('--query-gpu=index,memory.used', '--format=csv,noheader,nounits')
    """
    chosen = ("-i", ",".join(map(str, gpus))) if gpus else ()
    query = f"--query-gpu={','.join(columns)}"
    return ("nvidia-smi", query, "--format=csv,noheader,nounits", *chosen, "-lms", str(round(period_s * 1000)))


def num_gpus(text: bytes) -> int:
    r"""The number of GPUs that the first cell of a whole answer names, 0 where it names none.

    >>> num_gpus(b"8, 2026/11/02 10:00:00.000, 0, GPU-a\n"), num_gpus(b"Failed to initialize NVML")
    (8, 0)
    """
    cell = text.split(b",", 1)[0].strip()
    return int(cell) if cell.isdigit() and b"\n" in text else 0


def _take_terminal() -> None:
    die_with_parent()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


def _start(argv: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], int]:
    """The child, and our end of its terminal: on a pipe its rows could wait in a buffer."""
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    return process, ours


class SmiLoop:
    """Hands every answer to `on_gpus`, and a sentence where there is none."""

    def __init__(self, loop: Loop, on_gpus: OnGpus, *, gpus: tuple[int, ...], period_s: float) -> None:
        self._loop = loop
        self._on_gpus = on_gpus
        self._gpus = gpus
        self._period_s = period_s
        self._columns: tuple[str, ...] = _ASKED
        self._expected = len(gpus)  # rows of a whole answer; 0 = not known yet
        self._quiet_s = min(_QUIET_S, 0.4 * period_s)  # so long after the last row an answer is over
        self._process: subprocess.Popen[bytes] | None = None
        self._terminal_fd: int | None = None
        self._text = b""
        self._last_byte = 0.0
        self._deadline = 0.0
        self._num_failures = 0
        self._has_answered = False
        self._is_ended = False
        self.problem = ""

    @property
    def pid(self) -> int | None:
        """The child that answers or hangs now."""
        return self._process.pid if self._process else None

    @property
    def is_answering(self) -> bool:
        """Whether the child's newest answer was a good one."""
        return self._process is not None and self._has_answered and not self.problem

    def start(self) -> None:
        """Start the child; a missing program is a problem, not an error."""
        if self._is_ended or self._process is not None:
            return
        if shutil.which("nvidia-smi") is None:
            self.problem = "no nvidia-smi on this target"
            self._again()
            return
        try:
            self._process, self._terminal_fd = _start(smi_argv(self._columns, self._gpus, self._period_s))
        except OSError as error:
            self.problem = f"nvidia-smi cannot be started: {error.strerror}"
            self._again()
            return
        self._text = b""
        self._has_answered = False
        self._deadline = time.monotonic() + max(FIRST_ANSWER_S, 5 * self._period_s)
        self._loop.watch(self._terminal_fd, READ, self._read)

    def _read(self, events: int) -> None:
        data = b""
        with contextlib.suppress(OSError):  # EIO: the child closed its end; its exit tells the rest
            data = os.read(self._terminal_fd or -1, _CHUNK_BYTES)
        if not data:
            self._hang_up()
            return
        self._text = (self._text + data)[-_PENDING_LIMIT_BYTES:]
        self._last_byte = time.monotonic()
        self._expected = self._expected or num_gpus(self._text)
        if self._expected and self._text.count(b"\n") >= self._expected:
            self._answer()
        else:
            self._loop.later(self._quiet_s, self._answer_if_quiet)

    def _answer_if_quiet(self) -> None:
        if self._text.endswith(b"\n") and time.monotonic() - self._last_byte >= self._quiet_s * 0.9:
            self._answer()

    def _answer(self) -> None:
        text = self._text.decode(errors="replace")
        self._text = b""
        gpus, self.problem = parse_csv(text, self._columns)
        if gpus:
            self._num_failures = 0
            self._has_answered = True
            self._deadline = time.monotonic() + max(SILENCE_S, 5 * self._period_s)
        elif not self.problem:
            self.problem = text.strip()[:200]
        refused = refused_column(text)
        if refused in self._columns:
            self._columns = tuple(name for name in self._columns if name != refused)
            self._num_failures = 0
            return
        self._on_gpus(gpus, self.problem)

    def check(self) -> None:
        """The watchdog; to be called every second."""
        if self._process is not None and time.monotonic() >= self._deadline:
            self.problem = "nvidia-smi does not answer"
            self._deadline = time.monotonic() + SILENCE_S
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(self._process.pid, signal.SIGKILL)  # in state D it stays; then no second one is started

    def ended(self, status: int) -> None:
        """The child was reaped; another one is started after a while."""
        if self._text:
            self._answer()
        self._hang_up()
        if self._process is not None:
            self._process.returncode = os.waitstatus_to_exitcode(status)
            if not self.problem:
                self.problem = f"nvidia-smi ended with status {self._process.returncode}"
            self._process = None
        self._again()

    def _again(self) -> None:
        if not self._is_ended:
            self._loop.later(BACKOFF_S[min(self._num_failures, len(BACKOFF_S) - 1)], self.start)
            self._num_failures += 1

    def _hang_up(self) -> None:
        if self._terminal_fd is not None:
            self._loop.forget(self._terminal_fd)
            os.close(self._terminal_fd)
            self._terminal_fd = None

    def end(self) -> None:
        """Kill the child without waiting for it."""
        self._is_ended = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.killpg(self._process.pid, signal.SIGKILL)
        self._hang_up()
