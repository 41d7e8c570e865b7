"""Somebody else's tmux session: started by hand, not by opsctl, on a socket of the test."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.until import until


class ForeignSession:
    """A session with one pane, in which a shell waits for commands."""

    def __init__(self, socket: Path, columns: int, rows: int) -> None:
        self.socket = str(socket)
        self.name = "train"
        place = ("-x", str(columns), "-y", str(rows), "-c", str(socket.parent))
        self.tmux("-f", "/dev/null", "new-session", "-d", "-s", self.name, *place, "env PS1='$ ' bash --norc")
        self.wait_for_prompt()  # what is typed before is shown twice

    def wait_for_prompt(self) -> None:
        """Return once the shell waits for a command."""
        until(lambda: self.text().rstrip().endswith("$"))

    def tmux(self, *words: str) -> str:
        argv = ("tmux", "-S", self.socket, *words)
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    def type(self, *argv: str) -> None:
        """Type a command, as a person does."""
        self.tmux("send-keys", "-t", self.name, shlex.join(argv), "Enter")

    def text(self) -> str:
        """All that the pane holds."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-", "-t", self.name)

    def words(self) -> tuple[str, ...]:
        """How to name it to `opsctl watch`."""
        return ("--session", self.name, "--socket", self.socket)

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # its last pane ended, and the server with it
            self.tmux("kill-server")


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Callable[..., ForeignSession]]:
    """Start a session: `foreign(columns=40)`."""
    sessions: list[ForeignSession] = []

    def start(*, columns: int = 80, rows: int = 24) -> ForeignSession:
        sessions.append(ForeignSession(tmp_path / f"tmux-{secrets.token_hex(3)}", columns, rows))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()
