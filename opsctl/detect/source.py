"""Where in the log the cause of a verdict stands: its byte range, rank, file and line. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.detect.state import State
from opsctl.detect.words import Hit


@dataclass(frozen=True)
class Source:
    """A place in the log: bytes `start` to `end`, and who raised it where."""

    start: int
    end: int
    text: str
    where: str = ""  # file:line of the root exception
    rank: int | None = None


def source_of(state: State, cause: str) -> Source | None:
    """The words in the log that a verdict of this cause rests on; None where it rests on something else."""
    root = state.words.root(state.progress.num_rows)
    hit = root if root is not None and root.cause == cause else _newest(state, cause)
    return None if hit is None else Source(hit.start, hit.end, hit.text, hit.where, hit.rank)


def _newest(state: State, cause: str) -> Hit | None:
    """The newest words with this cause; the first ones of a cause that only repeats itself are as good."""
    return max((hit for hit in state.words.last.values() if hit.cause == cause), key=lambda hit: hit.end, default=None)
