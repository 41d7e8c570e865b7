"""Which rows of a pane are new since it was last looked at: told by its content, since old rows fall off at the top.

Pure; knows nothing of tmux.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

KEPT_ROWS = 400


class Scrollback:
    """Remembers the newest rows that were handed on, to know them by in the next capture."""

    def __init__(self, told: Sequence[str] = (), *, height: int = 50) -> None:
        self._told: deque[str] = deque(told, maxlen=KEPT_ROWS)
        self._height = height  # rows of the screen, which a program may still draw anew

    def new_rows(self, rows: Sequence[str], *, is_whole: bool) -> list[str] | None:
        """The rows of a capture that were not handed on yet.

        None where none of the known ones is in it: there is a gap, unless `is_whole` says that no older
        rows exist; then all are new.
        """
        found = self._resume(rows)
        if found is None:
            if not is_whole:
                return None
            found = list(rows)
        self._told.extend(found)
        return found

    def _resume(self, rows: Sequence[str]) -> list[str] | None:
        told = list(self._told)
        for redrawn in range(min(self._height, len(told)) + 1 if told else 0):
            known = told[: len(told) - redrawn]
            at = end_of_overlap(known, rows)
            if at is not None:
                before = set(told[len(told) - redrawn :])
                return [row for row in rows[at:] if row not in before] if redrawn else list(rows[at:])
        return None


def end_of_overlap(known: Sequence[str], rows: Sequence[str]) -> int | None:
    """How many first rows are the known ones' newest; None where the two do not meet.

    >>> end_of_overlap(["a", "b", "c"], ["b", "c", "d"])
    2
    """
    for end in range(len(rows), 0, -1):
        size = min(end, len(known))
        if size and rows[end - 1] == known[-1] and list(rows[end - size : end]) == list(known[-size:]):
            return end
    return None
