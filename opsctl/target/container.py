"""Containers as pure functions: argv on the host from argv inside. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opsctl.target.command import Argv


class Container(Protocol):
    """What an argv is wrapped in on its host."""

    @property
    def label(self) -> str:
        """How messages name it, "" for none."""

    def wrap(self, argv: Argv) -> Argv:
        """The argv on the host that runs `argv` inside."""


@dataclass(frozen=True)
class NoContainer:
    """Nothing is put in front."""

    label: str = ""

    def wrap(self, argv: Argv) -> Argv:
        """The argv itself.

        >>> NoContainer().wrap(("true",))
        ('true',)
        """
        return argv
