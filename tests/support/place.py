"""Where a target's files and processes are: this machine, or a container on it, looked at from outside."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

USER = "ml"  # stands in every container of the tests, beside root


def ran(*argv: str, timeout_s: float = 120.0) -> str:
    """The stdout of a command that succeeds within `timeout_s`."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Place:
    """One kind of container; every one of them runs on this machine, so /proc shows the files inside."""

    kind: str
    container: Any = "none"  # as in opsctl.yaml
    become: tuple[str, ...] = ()
    python: str = "python3"
    init_pid: Callable[[], int] | None = None  # our pid of its PID 1
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)  # how to start, stop, pause and resume it

    def outside(self, path: str) -> Path:
        """Our path of the file that lies at the absolute `path` inside."""
        return Path(f"/proc/{self.init_pid()}/root{path}") if self.init_pid else Path(path)

    def do(self, action: str) -> None:
        """Start, stop, pause or resume it, not by opsctl's means."""
        ran(*self.words[action])

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The target's section of opsctl.yaml."""
        return {"container": self.container, "python": self.python, "become": list(self.become), **changes}

    def as_user(self, user: str) -> Place:
        """The same container, entered as `user`."""
        return Place(self.kind, {**self.container, "user": user}, self.become, self.python, self.init_pid, self.words)

    @contextmanager
    def folder(self) -> Iterator[str]:
        """A folder inside with a hostile name, removed at the end."""
        path = f"/tmp/opsctl {secrets.token_hex(4)}, it's"
        self.outside(path).mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(self.outside(path), ignore_errors=True)
