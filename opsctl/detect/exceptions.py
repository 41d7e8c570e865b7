"""The fold that puts tracebacks together: interleaved ranks, chains, threads, rich boxes, cut tails.

Says which exceptions were raised and where; whether one matters is decided by what follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from opsctl.detect.lines import shape_key
from opsctl.detect.rows import LOGGED, Row

MAX_OPEN = 64  # ranks
MAX_FOREIGN_ROWS = 40
MAX_FRAMES = 24
HEAD_BYTES = 1000
FRAME_INDENT = "  "

_HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r"File \"?([^\",]+)\"?, line (\d+)|^(/\S+\.py):(\d+) in ")
_CUT_FRAME = re.compile(r"File \"[^\"]+\", line \d+, in \S")
_NAMED = re.compile(r"^(?:\s{1,12}\| +)?((?:[A-Za-z_]\w*\.)*(?:_?[A-Z]\w*|\w*(?:error|timeout)))(?::\s?(.*))?$")
_DOTTED = re.compile(r"((?:[a-z_]\w*\.)+_?[A-Z]\w*)(?::\s(.*))?$")
_BARE = re.compile(
    r"(?:^|\s\| +)((?:[A-Za-z_]\w*\.)*"
    r"_?[A-Z]\w*(?:Error|Exception|Interrupt|Unsupported|OutOfResources|LimitHit|Exit|Iteration))(?::\s(.*))?$"
)
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_THREAD = re.compile(r"Exception in thread (\S+)")
_IGNORED = re.compile(
    r"Exception ignored in|--- Logging error ---|Error in (?:atexit|sys\.excepthook)"
    r"|Exception in callback|was never retrieved"
)

_LOGGER = re.compile(  # logger.exception writes such a row first
    r"\d\d:\d\d:\d\d.*\b(?:WARNING|ERROR|CRITICAL)\b|^(?:ERROR|WARNING|CRITICAL):[\w.]+:|\[(?:ERROR|WARNING)\]"
)


@dataclass(frozen=True)
class Trace:
    """One exception as printed. `where` is file:line of its innermost frame, the user's own if any is in view.

    `is_inner`: a worker process raised it, and the main process passed its text on.
    """

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
    is_inner: bool = False

    @property
    def text(self) -> str:
        """Its last row, without what stood before it."""
        return f"{self.kind}: {self.message}".rstrip(": ")


@dataclass
class _Open:
    start: int
    thread: str = ""
    is_logged: bool = False
    is_ignored: bool = False
    is_chained: bool = False
    is_inner: bool = False
    is_cut: bool = False  # its header is out of view
    frames: list[str] = field(default_factory=list)
    foreign: int = 0
    prefix: str = ""  # what stands before the header, and perhaps with other digits before each row
    margin: str = ""  # the same of the first frame: a report that holds a traceback indents it


@dataclass
class Exceptions:
    """State of the fold: the tracebacks begun and not ended, by rank; changed in place."""

    open: dict[int | None, _Open] = field(default_factory=dict)

    def observe(self, row: Row, before: str) -> Trace | None:
        """Fold one row in; `before` is the row printed before it. Returns the exception that the row completes."""
        text = row.text
        if _HEADER in text:
            self._begin(row, before)
            return None
        begun = self.open.get(row.rank) or self._begun_before(row)
        if begun is None:
            return self._outside(row, before)
        text = _bare(begun, text)
        if self._inside(begun, text):
            return None
        return self._end(row if text is row.text else replace(row, text=text), begun)

    def is_source(self, row: Row) -> bool:
        """Whether the row is a frame or a source row of an open traceback: its words are no message."""
        begun = self.open.get(row.rank)
        return begun is not None and (row.is_boxed or _bare(begun, row.text)[:1] in " \t")

    def _begin(self, row: Row, before: str) -> None:
        if len(self.open) >= MAX_OPEN:
            self.open.clear()
        self.open[row.rank] = _opened(row, before)

    def _begun_before(self, row: Row) -> _Open | None:
        """The traceback of a frame at the very begin of what is in view."""
        if row.start >= HEAD_BYTES or not _CUT_FRAME.search(row.text):
            return None
        return self.open.setdefault(row.rank, _Open(row.start, is_cut=True))

    def _outside(self, row: Row, before: str) -> Trace | None:
        """An exception whose traceback was cut off, or was never printed."""
        if "Error" not in row.text and "Exception" not in row.text and not row.text.endswith("Interrupt"):
            return None
        bare = None if row.is_boxed else _BARE.search(row.text)
        return self._trace(row, bare, _opened(row, before)) if bare else None

    def _inside(self, begun: _Open, text: str) -> bool:
        """Whether the row still belongs to the traceback's frames; notes the frame it names."""
        frame = None if _NAMED.match(text) else _FRAME.search(text)  # a message may name a file and line, too
        if frame:
            if not begun.frames and text[: frame.start()].endswith(FRAME_INDENT):
                begun.margin = text[: frame.start()].removesuffix(FRAME_INDENT)
            begun.frames = [
                *begun.frames[-MAX_FRAMES:],
                f"{frame.group(1) or frame.group(3)}:{frame.group(2) or frame.group(4)}",
            ]
            return True
        return text[:1] in " \t" and not re.match(r"\s{1,12}\| +[\w.]+(?:Error|Exception|Group)\b", text)

    def _end(self, row: Row, begun: _Open) -> Trace | None:
        known = _DOTTED if begun.is_cut else _NAMED
        named = None if row.is_boxed else known.match(row.text) or _BARE.search(row.text)
        if named:
            del self.open[row.rank]
            return self._trace(row, named, begun)
        begun.foreign += 1
        if begun.foreign > MAX_FOREIGN_ROWS or row.text.startswith(_CHAIN):
            del self.open[row.rank]
        return None

    def _trace(self, row: Row, named: re.Match[str], begun: _Open) -> Trace:
        trace = Trace(named.group(1), named.group(2) or "", row.time, begun.start, row.end, row.rank)
        return replace(
            trace,
            where=_where(begun.frames),
            is_inner=begun.is_inner,
            frames=tuple(begun.frames),
            thread=begun.thread,
            is_logged=begun.is_logged,
            is_ignored=begun.is_ignored,
            is_chained=begun.is_chained,
        )


def _opened(row: Row, before: str) -> _Open:
    """What the row before a traceback says about it: a thread's, a logger's, one that Python ignores, a chain."""
    thread = _THREAD.search(before)
    return _Open(
        row.start,
        thread.group(1) if thread else "",
        row.level in LOGGED or bool(_LOGGER.search(before)),
        bool(_IGNORED.search(before)),
        any(words in before for words in _CHAIN),
        row.text.startswith("Original Traceback"),
        prefix=row.text.partition(_HEADER)[0].removesuffix("Original ") if _HEADER in row.text else "",
    )


def _bare(begun: _Open, text: str) -> str:
    """`text` without what stands before each row of its traceback."""
    for before in (begun.prefix, begun.margin):
        if before and shape_key(text[: len(before)]) == shape_key(before):
            return text[len(before) :]
    return text


def _where(frames: list[str]) -> str:
    own = [frame for frame in frames if "site-packages/" not in frame and "/lib/python3" not in frame]
    return (own or frames or [""])[-1]
