"""Raw job output, in any pieces, to Line records whose byte ranges count in the raw stream.

Undoes carriage returns, backspaces, ANSI, cut UTF-8 and, where the width of a pane is known, hard wraps.
Memory is bounded: a row longer than MAX_ROW_BYTES is handed on in parts. Pure; no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opsctl.records.events import Line

MAX_ROW_BYTES = 32 * 1024
MAX_JOINED_ROWS = 200
ALIKE = 8  # characters
MAX_BLANKS = 8  # at a cut

_END = re.compile(rb"\r+\n|\n|\r+|\x08+")
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC and other strings
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two-character escapes and character sets
    r"|\x1b(?:\[[0-?]*[ -/]*)?$"  # one that the end of the text cut
)
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), 127])
_CUT_UTF8 = re.compile(rb"(?:[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z")
_BOX_LEFT = "\u2502\u2503\u256d\u2570\u250f\u2517"
_BOX_RIGHT = "\u2502\u2503\u256e\u256f\u2513\u251b"
_BAR_END = re.compile(r"(?:it/s|s/it)[^\]]*\]$")
_FRESH = re.compile(
    r"\s|[\[<{|#*=+~-]|\((?!m?s\))|\d{4}-\d\d-\d\d|\d\d:\d\d|[A-Z]\d{4} |[\w.]{1,80}(?:Error|Exception)\b"
    r"|Traceback|File |Killed|Terminated|Segm|Abort|Bus error"
    r"|(?:[Ss]tep|[Ee]poch|[Ii]ter\w*|[Ll]oss|eval\w*|INFO|WARN\w*|ERROR|DEBUG|train\w*)\b|[\w-]{1,64}:\d{1,9}:\d{1,9} "
)
_SURELY_FRESH = re.compile(
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\[rank\d{1,6}\]:|\[?[IWEVFC]\d{3,4} \d\d:\d\d:\d\d|Traceback \(most recent"
)
_DIGITS = str.maketrans("123456789", "000000000")


@dataclass(frozen=True)
class LineState:
    """What is known between two pieces: the row not ended yet and where it begins.

    `columns` is the width of the pane that cut rows hard; 0 where nothing did.
    """

    offset: int = 0  # of the first byte of `pending`
    pending: bytes = b""
    columns: int = 0
    held: tuple[str, ...] = ()  # physical rows of one logical row, newest last
    held_width: int = 0  # of the newest physical row
    held_start: int = 0
    held_end: int = 0


def shape_key(text: str) -> str:
    """What texts that differ only in their digits have in common.

    >>> shape_key("step 12/300")
    'step 00/000'
    """
    return text.translate(_DIGITS)


def strip_ansi(text: str) -> str:
    """`text` without escape sequences and control characters; tabs stay.

    >>> strip_ansi("\\x1b[1;35mKeyError\\x1b[0m: \\x1b[35m'a'\\x1b[0m")
    "KeyError: 'a'"
    """
    return _ESCAPE.sub("", text).translate(_CONTROL) if "\x1b" in text else text.translate(_CONTROL)


def split(state: LineState, data: bytes, time: float) -> tuple[LineState, tuple[Line, ...]]:
    """The rows that `data` completes, seen at `time`; the unfinished rest waits in the state.

    Equal bytes give equal rows however they are cut into pieces.
    """
    data = state.pending + data
    rows, offset, pending = _plain_rows(state.offset, data, time) or _rows(state.offset, data, time)
    state = replace(state, offset=offset, pending=pending)
    return _unwrap(state, rows) if state.columns else (state, tuple(rows))


def flush(state: LineState, time: float) -> tuple[LineState, tuple[Line, ...]]:
    """What the state still holds, as a partial row: for the end of the data."""
    rows: list[Line] = []
    raw = state.pending.rstrip(b"\r\x08")
    end = state.offset + len(state.pending)
    if raw:
        redraw = len(raw) < len(state.pending)
        text = _text(_CUT_UTF8.sub(b"", raw))
        rows.append(Line(time, text, state.offset, end, is_redraw=redraw, is_partial=not redraw))
    state = replace(state, offset=end, pending=b"")
    if not state.columns:
        return state, tuple(rows)
    state, joined = _unwrap(state, rows)
    state, last = _release(state, time)
    return state, joined + last


def _plain_rows(offset: int, data: bytes, time: float) -> tuple[list[Line], int, bytes] | None:
    """The rows of text that needs nothing undone, as most does: ASCII, newlines only, no endless row; else None."""
    last = data.rfind(b"\n") + 1
    if not last or not data.isascii() or b"\r" in data or b"\x08" in data or len(data) - last > MAX_ROW_BYTES:
        return None
    rows: list[Line] = []
    for text in data[: last - 1].decode("ascii").split("\n"):
        end = offset + len(text) + 1
        if end - offset > MAX_ROW_BYTES:
            return None
        rows.append(Line(time, text if text.isprintable() else strip_ansi(text), offset, end))
        offset = end
    return rows, offset, data[last:]


def _rows(offset: int, data: bytes, time: float) -> tuple[list[Line], int, bytes]:
    rows: list[Line] = []
    begin, last = 0, len(data)
    for match in _END.finditer(data):
        first, stop = match.span()
        if stop == len(data) and data[stop - 1] != 10:
            last = first  # more of the same ending, or its newline, may follow
            break
        begin = _long_rows(rows, data, begin, first, offset, time)
        redraw = data[stop - 1] != 10
        if first > begin or not redraw:
            text = _text(data[begin:first])
            rows.append(Line(time, text, offset + begin, offset + stop, is_redraw=redraw))
        begin = stop
    begin = _long_rows(rows, data, begin, last, offset, time)
    return rows, offset + begin, data[begin:]


def _long_rows(rows: list[Line], data: bytes, begin: int, end: int, offset: int, time: float) -> int:
    while end - begin > MAX_ROW_BYTES:
        cut = begin + MAX_ROW_BYTES
        while cut > begin + MAX_ROW_BYTES - 4 and data[cut] & 0xC0 == 0x80:
            cut -= 1
        rows.append(Line(time, _text(data[begin:cut]), offset + begin, offset + cut))
        begin = cut
    return begin


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return text if text.isprintable() else strip_ansi(text)


# --- hard wraps ------------------------------------------------------------------------------------


def display_width(text: str) -> int:
    """Terminal columns that `text` takes: wide characters count two, combining ones none.

    >>> display_width("abc"), display_width("\\u6bb5\\u9519\\u8bef")
    (3, 6)
    """
    if text.isascii():
        return len(text)
    import unicodedata  # only panes need it, and it costs a megabyte

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _unwrap(state: LineState, rows: list[Line]) -> tuple[LineState, tuple[Line, ...]]:
    out: list[Line] = []
    for row in rows:
        glue = _glue(state, row)
        if glue is None:
            state, done = _release(state, row.time)
            out.extend(done)
            state = replace(state, held=(row.text,), held_start=row.start)
        else:
            state = replace(state, held=(*state.held, glue + row.text))
        state = replace(state, held_end=row.end, held_width=display_width(row.text))
    return state, tuple(out)


def _glue(state: LineState, row: Line) -> str | None:
    """What stands between the held row and its continuation; None where `row` is no continuation."""
    if not state.held or not row.text or len(state.held) >= MAX_JOINED_ROWS or _is_next_of_box(state, row.text):
        return None
    spare = state.columns - state.held_width
    if spare <= 0 and _is_new(state.held[0], row.text):
        return None
    if spare <= 0 or (spare == 1 and display_width(row.text[0]) == 2):
        return ""
    if spare <= MAX_BLANKS and _is_open_object(state):
        return " " * spare
    if spare != 1 or _FRESH.match(row.text) or _BAR_END.search(state.held[-1]):
        return None
    return " "  # the blank at the cut is gone


def _is_open_object(state: LineState) -> bool:
    """Whether the held row is of JSON and has not ended: nothing else can follow."""
    return state.held[0].startswith('{"') and not state.held[-1].endswith("}")


def _is_new(held: str, text: str) -> bool:
    """Whether `text` begins as no continuation does: as the row before it, or with a time, rank or traceback."""
    begin = shape_key(text[:ALIKE])
    is_alike = begin == shape_key(held[:ALIKE]) and sum(map(str.isalnum, begin)) >= ALIKE // 2
    return is_alike or bool(_SURELY_FRESH.match(text))


def _is_next_of_box(state: LineState, text: str) -> bool:
    """After a row of a drawn box, which may be just as wide as the pane, stands a new row; not a lone border."""
    held = state.held[0][:1] in _BOX_LEFT and bool(state.held[0])
    is_closed = len(state.held) == 1 and state.held[0][-1:] in _BOX_RIGHT
    return held and (is_closed or (text[0] in _BOX_LEFT and len(text.strip()) > 1))


def _release(state: LineState, time: float) -> tuple[LineState, tuple[Line, ...]]:
    if not state.held:
        return state, ()
    line = Line(time, "".join(state.held), state.held_start, state.held_end)
    return replace(state, held=(), held_start=state.held_end), (line,)
