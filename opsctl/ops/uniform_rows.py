"""Thins out the long stretches of a large log in which nothing new is said: quiet rows, and floods of the same words.

Pure. The first and the last rows of every stretch stay, so that whatever comes before or after it is judged as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from opsctl.detect import watcher
from opsctl.detect.lines import shape_key
from opsctl.records.events import Line

WHOLE_ROWS = 20_000  # so much of a log is looked at row by row
EDGE_ROWS = 256  # at both ends of a stretch; more than any fold looks back
EVERY = 16  # one of so many rows between them stays
FLOOD_ROWS = 1000  # rows alike that mean something, of which so many are looked at; quiet ones mean nothing
MAX_SHAPES = 512


class UniformRows:
    """The rows that are worth a look; `num_dropped` counts those left out before the newest one handed on."""

    def __init__(self, rows: Iterator[Line]) -> None:
        self._rows = rows
        self._looks: dict[str, int] = {}  # how many more rows of each shape are looked at
        self._length = 0  # of the present stretch
        self._held: deque[Line] = deque()  # its newest rows, which are its last ones if it ends now
        self.num_dropped = 0

    def __iter__(self) -> Iterator[Line]:
        for number, row in enumerate(self._rows):
            if number < WHOLE_ROWS or not self._continues(row.text):
                yield from self._released()
                yield row
            elif self._length <= EDGE_ROWS:
                yield row
            else:
                self._held.append(row)
                if len(self._held) <= EDGE_ROWS:
                    continue
                oldest = self._held.popleft()
                if self._length % EVERY:
                    self.num_dropped += 1
                else:
                    yield oldest
        yield from self._released()

    def _continues(self, text: str) -> bool:
        """Whether a row belongs to a stretch in which nothing new is said."""
        key = shape_key(text)
        looks = self._looks.get(key)
        if looks is None:
            if len(self._looks) >= MAX_SHAPES:
                self._looks.clear()
            looks = self._looks[key] = 0 if watcher.is_quiet(key) else FLOOD_ROWS
        if looks:
            self._looks[key] = looks - 1
            return False
        self._length += 1
        return True

    def _released(self) -> Iterator[Line]:
        self._length = 0
        while self._held:
            yield self._held.popleft()
