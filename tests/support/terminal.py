"""A real terminal of a given size for a command, held by a tmux server of its own."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.support.until import until


class Terminal:
    """One command in a terminal; what it shows can be read, keys can be pressed."""

    def __init__(
        self, argv: tuple[str, ...], *, folder: Path, socket: Path, width: int, height: int, **environment: str
    ) -> None:
        self._socket = socket
        settings = [f"{name}={value}" for name, value in environment.items()]
        command = shlex.join(["env", *settings, *argv]) + "; echo status=$?; exec cat"
        self._tmux("-f", "/dev/null", "-u", "new-session", "-d", "-x", str(width), "-y", str(height),
                   "-c", str(folder), command)  # fmt: skip

    def _tmux(self, *words: str) -> str:
        argv = ("tmux", "-S", str(self._socket), *words)
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def text(self, *, colours: bool = False) -> str:
        """What stands on the screen now."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait_for(self, *words: str, within_s: float = 60.0) -> str:
        """The screen as soon as it holds all these words."""

        def found() -> str:
            text = self.text()
            return text if all(word in text for word in words) else ""

        return until(found, within_s)

    def press(self, key: str) -> None:
        """Press a key, by tmux's name for it."""
        self._tmux("send-keys", key)

    def close(self) -> None:
        """End the terminal and what runs in it."""
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False)
