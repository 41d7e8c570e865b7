"""`opsctl train attach` on a real terminal: what is shown and what is typed, as if sitting there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import COMMAND
from tests.support.runs import Runs, is_gone
from tests.support.until import until

pytestmark = pytest.mark.tmux


class Terminal:
    """A process on a pseudo-terminal, with all that it has shown."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.shown = b""

    def sees(self, text: bytes) -> bool:
        """Whether the text has been shown by now."""
        while select.select([self._descriptor], [], [], 0)[0]:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:  # the other end is closed
                break
            self.shown += data
        return text in self.shown

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._descriptor, keys)

    def is_over(self) -> bool:
        """Whether the process ended; reads on, since it may wait for us to."""
        self.sees(b"")
        return self.process.poll() is not None


@contextlib.contextmanager
def attached(runs: Runs, *words: str) -> Iterator[Terminal]:
    """`opsctl train attach` on a terminal of 120 x 40."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with subprocess.Popen(
        [COMMAND, "train", "attach", *words],
        cwd=runs.project,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def test_keys_reach_the_job_and_detaching_leaves_it_alone(runs: Runs) -> None:
    job = 'echo "ready"; while read -r row; do echo "got <$row>"; done'
    run = runs.start("sh", "-c", job)
    with attached(runs) as terminal:
        until(lambda: terminal.sees(b"ready"))
        terminal.type(b"hello there\r")
        until(lambda: terminal.sees(b"got <hello there>"))
        # tmux takes keys within a millisecond of others for a paste, in which Ctrl-b is a letter: once more, then
        until(lambda: terminal.is_over() or terminal.type(b"\x02d"), period_s=0.5)
        assert terminal.process.returncode == 0
    assert b"got <hello there>" in runs.log(run)
    assert not is_gone(runs.job_pid(run))


def test_ctrl_c_interrupts_the_job_and_not_the_recorder(runs: Runs) -> None:
    job = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    run = runs.start("sh", "-c", job)
    with attached(runs) as terminal:
        until(lambda: terminal.sees(b"ready"))
        terminal.type(b"\x03")
        until(terminal.is_over)
    record = runs.ended(run)
    assert record["attempts"][0]["exit_code"] == 9
    assert b"interrupted" in runs.log(run)


def test_attach_says_why_it_cannot(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("true")
    runs.ended(run)
    assert opsctl("train", "attach").code == 2  # no terminal
    with attached(runs) as terminal:
        until(terminal.is_over)
        terminal.sees(b"")
        assert terminal.process.returncode == 1
        assert b"is over" in terminal.shown
    other = runs.start("sleep", "600", name="other")
    subprocess.run(["tmux", "-S", other["run"]["socket"], "kill-server"], check=True)
    with attached(runs, "other") as terminal:
        until(terminal.is_over)
        terminal.sees(b"")
        assert b"the run itself goes on" in terminal.shown
