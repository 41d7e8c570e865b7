"""A target: host x container under a name. Joins the two; knows nothing of the agent's verbs."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.target.command import Argv
from opsctl.target.container import Container
from opsctl.target.host import Channel, Host

# libtmux fails and Python guesses an ASCII file system where no UTF-8 locale is set
_ENVIRONMENT = ("env", "LC_ALL=C.UTF-8")


@dataclass(frozen=True)
class Target:
    """Where things run, and where opsctl keeps its state there."""

    name: str
    host: Host
    container: Container
    home: str = "~/.opsctl"
    python: str = "python3"

    @property
    def label(self) -> str:
        """How messages name it: the name, and what stands behind it."""
        behind = " ".join(part for part in (self.host.label, self.container.label) if part)
        return f"{self.name} ({behind})"

    def start(self, argv: Argv) -> Channel:
        """Start `argv` inside the target with pipes."""
        return self.host.start(self.container.wrap((*_ENVIRONMENT, *argv)))

    def interactive_argv(self, argv: Argv) -> Argv:
        """The local argv that runs `argv` inside the target on the caller's terminal."""
        return self.host.interactive_argv(self.container.wrap((*_ENVIRONMENT, *argv)))
