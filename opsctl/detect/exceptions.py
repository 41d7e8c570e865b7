"""The fold that puts tracebacks together: interleaved ranks, chains, threads, rich boxes, cut tails.

Says which exceptions were raised and where; whether one matters is decided by what follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from opsctl.detect.rows import LOGGED, Row

MAX_OPEN = 64  # ranks
MAX_FOREIGN_ROWS = 40
MAX_FRAMES = 24

_HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r"File \"?([^\",]+)\"?, line (\d+)|^(/\S+\.py):(\d+) in ")
_NAMED = re.compile(r"^(?:\s+\| +)?((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|\w*(?:error|timeout)))(?::\s?(.*))?$")
_BARE = re.compile(
    r"(?:^|\s\| +)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Unsupported|OutOfResources|LimitHit|Exit))(?::\s(.*))?$"
)
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_THREAD = re.compile(r"Exception in thread (\S+)")
_IGNORED = re.compile(
    r"Exception ignored in|--- Logging error ---|Error in (?:atexit|sys\.excepthook)|Exception in callback|was never retrieved"
)

_LOGGER = re.compile(r"\d\d:\d\d:\d\d|^(?:ERROR|WARNING|CRITICAL):[\w.]+:|\[(?:ERROR|WARNING)\]")  # logger.exception


@dataclass(frozen=True)
class Trace:
    """One exception as printed. `where` is file:line of its innermost frame; empty where that was cut off."""

    kind: str
    message: str
    time: float
    start: int
    end: int
    rank: int | None = None
    where: str = ""
    frames: tuple[str, ...] = ()
    thread: str = ""
    is_logged: bool = False
    is_ignored: bool = False
    is_chained: bool = False  # raised while, or because, an earlier one was handled


@dataclass
class _Open:
    start: int
    thread: str = ""
    is_logged: bool = False
    is_ignored: bool = False
    is_chained: bool = False
    frames: list[str] = field(default_factory=list)
    foreign: int = 0


@dataclass
class Exceptions:
    """State of the fold: the tracebacks begun and not ended, by rank; changed in place."""

    open: dict[int | None, _Open] = field(default_factory=dict)
    thread: str = ""
    is_ignored: bool = False
    is_chained: bool = False
    is_logged: bool = False

    def observe(self, row: Row) -> Trace | None:
        """Fold one row in; returns the exception that it completes."""
        text = row.text
        if _HEADER in text:
            self._begin(row)
            return None
        begun = self.open.get(row.rank)
        if begun is None:
            return self._outside(row)
        if self._inside(begun, text):
            return None
        return self._end(row, begun)

    def is_source(self, row: Row) -> bool:
        """Whether the row is a frame or a source row of an open traceback: its words are no message."""
        return row.rank in self.open and (row.text[:1] in " \t" or row.is_boxed)

    def _begin(self, row: Row) -> None:
        if len(self.open) >= MAX_OPEN:
            self.open.clear()
        logged = row.level in LOGGED or self.is_logged
        self.open[row.rank] = _Open(row.start, self.thread, logged, self.is_ignored, self.is_chained)
        self.thread, self.is_ignored, self.is_chained, self.is_logged = "", False, False, False

    def _outside(self, row: Row) -> Trace | None:
        text = row.text
        if text.startswith(_CHAIN):
            self.is_chained = True
            return None
        thread = _THREAD.search(text)
        self.thread = thread.group(1) if thread else self.thread if not text.strip() else ""
        self.is_ignored = bool(_IGNORED.search(text)) or (self.is_ignored and not text.strip())
        self.is_logged = bool(row.level) and bool(_LOGGER.search(text))
        bare = _BARE.search(text)
        if bare is None or row.is_boxed:
            return None
        return self._trace(row, bare, _Open(row.start, is_logged=row.level in LOGGED, is_chained=self.is_chained))

    def _inside(self, begun: _Open, text: str) -> bool:
        """Whether the row still belongs to the traceback's frames; notes the frame it names."""
        frame = _FRAME.search(text)
        if frame:
            begun.frames = [
                *begun.frames[-MAX_FRAMES:],
                f"{frame.group(1) or frame.group(3)}:{frame.group(2) or frame.group(4)}",
            ]
            return True
        return text[:1] in " \t" and not re.match(r"\s+\| +[\w.]+(?:Error|Exception|Group)\b", text)

    def _end(self, row: Row, begun: _Open) -> Trace | None:
        named = None if row.is_boxed else _NAMED.match(row.text) or _BARE.search(row.text)
        if named:
            del self.open[row.rank]
            return self._trace(row, named, begun)
        begun.foreign += 1
        if begun.foreign > MAX_FOREIGN_ROWS or row.text.startswith(_CHAIN):
            del self.open[row.rank]
            self.is_chained = row.text.startswith(_CHAIN)
        return None

    def _trace(self, row: Row, named: re.Match[str], begun: _Open) -> Trace:
        trace = Trace(named.group(1), named.group(2) or "", row.time, begun.start, row.end, row.rank)
        return replace(
            trace,
            where=begun.frames[-1] if begun.frames else "",
            frames=tuple(begun.frames),
            thread=begun.thread,
            is_logged=begun.is_logged,
            is_ignored=begun.is_ignored,
            is_chained=begun.is_chained,
        )
