"""The state of a container, from the words of the tools that tell it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NO_PROGRAM = 127  # what a shell on the way answers for a program that is not there


@dataclass(frozen=True)
class ContainerState:
    """What the host says of a container: `kind` is running, stopped, paused, missing, no_tool or unknown."""

    kind: str
    detail: str = ""  # the host's own words where `kind` does not say it all


def state_of(code: int | None, output: str, errors: str, *, kinds: Mapping[str, str], missing: str) -> ContainerState:
    """The state that a tool's word stands for; these tools give "missing" no exit code of its own."""
    word, said = output.strip().lower(), errors.strip() or output.strip()
    if code == 0:
        return ContainerState(kinds.get(word, "unknown"), word)
    if code == _NO_PROGRAM:
        return ContainerState("no_tool", said)
    return ContainerState("missing" if missing in said.lower() else "unknown", said)
