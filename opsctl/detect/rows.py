"""Lines to rows: undoes what launchers and loggers put around a message.

Takes off rank prefixes, torch's and glog's log heads, rich boxes; splits a message glued to a progress bar, and a
traceback that stands as one text in a row of JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

from opsctl.records.events import Line

_BOX = "\u2502\u2503\u256d\u2570"  # the left edge of a rich box: bars and corners
_BOX_EDGE = _BOX + "\u256e\u256f\u2500 "
_HEADS = frozenset("[(0123456789IWEVFCDrJMASON" + _BOX)
_PREFIX = re.compile(
    r"\s{0,8}(?:\[?(?:default|rank[: ]?\s?)(?P<a>\d{1,6})\]?:\s?"  # torchrun --tee, torch >= 2.5
    r"|\[\d+,(?P<b>\d{1,6})\]\s?<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|(?P<c>\d{1,4}): (?=\s{0,8}\S)"  # srun --label
    r"|\((?:[\w.]{1,60} )?pid=\d+(?:, ip=[\d.]+)?\)\s?"  # ray
    r"|[\w.]{1,40}(?:-[\w.]{1,40}){0,5}-(?P<d>\d{1,6})\s{1,20}\| "  # docker compose
    r"|\[pod/[^\]]{1,200}\] "  # kubectl logs --prefix
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,60} [\w./-]{1,40}(?:\[\d+\])?: "  # journalctl
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? (?:std(?:out|err) [FP] )?"
    r")"  # the last: kubernetes, ts
)
_TORCH_HEAD = re.compile(
    r"\[?(?P<level>[IWEVFC])\d{3,4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?(?P<file>[\w/.+-]+):\d+\]\s?"
    r"|\[(?P<level2>[IWEF]) (?P<file2>[\w.]+):\d+\]\s?"
)
_TORCH_TAGS = re.compile(r"(?:\[(?:\d+/\d+(?:_\d+)?|__\w+|c10d)\]\s?)+")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_JSON_LEVEL = re.compile(
    r'"(?:level|levelname|level_name|log_level|severity|lvl)": ?"(debug|info|warn|error|critical|fatal)', re.I
)
_QUOTED = re.compile(r'Traceback \(most recent call last\):(?:[^"\\]|\\.)*')
_RANK_IN_HEAD = re.compile(r"\[?(?:PG ID \d{1,6} PG GUID \S{1,40} )?Rank (\d{1,6})\]")
_BAR_TAIL = re.compile(r"\d+/\d+ \[[^\]\[]*(?:\[[^\]]*\][^\]\[]*)?\](?=\S)|\.\.\.(?=Traceback \()")
_LEVELS = {"WARN": "W", "FATAL": "C"}
MAX_HEAD = 160  # characters that launchers may put before a row of JSON
LOGGED = frozenset("WIVD")  # levels at which a logger reports what was caught


@dataclass(frozen=True)
class Row:
    """One logical row: its message, and what the launcher or logger said around it.

    `level` is the first letter of a log level ("" where none is named), `origin` torch's source file.
    """

    text: str
    time: float
    start: int
    end: int
    rank: int | None = None
    level: str = ""
    origin: str = ""
    is_boxed: bool = False
    is_redraw: bool = False


def rows(line: Line) -> tuple[Row, ...]:
    """The row, or the bar and the message behind it, that `line` holds.

    >>> rows(Line(0.0, "[rank3]: KeyError: 'x'"))[0].rank
    3
    """
    text = _of_container(line.text) if line.text.startswith('{"log":"') else line.text
    if "(most recent call last):\\n" in text and '{"' in text[:MAX_HEAD]:
        return _unquoted(line, text)
    glued = _BAR_TAIL.search(text) if "/" in text and "[" in text else None
    if glued is None or glued.end() == len(text):
        return (_row(line, text),)
    return (_row(line, text[: glued.end()]), _row(line, text[glued.end() :]))


def _of_container(text: str) -> str:
    """What a container printed, of a row of its engine's own log; the row itself where it is cut."""
    try:
        return str(json.loads(text)["log"]).rstrip("\r\n")
    except (ValueError, KeyError):
        return text


def _unquoted(line: Line, text: str) -> tuple[Row, ...]:
    """The row without the traceback in it, and the rows of that: of the row's level, for a logger wrote it."""
    found = _QUOTED.search(text)
    if found is None:
        return (_row(line, text),)
    rest = _row(line, text[: found.start()] + text[found.end() :])
    told = found.group().replace('\\"', '"').replace("\\n", "\n").rstrip().split("\n")
    level = "W" if rest.level == "E" else rest.level  # what is logged may have been caught
    return (rest, *(replace(rest, text=row, level=level) for row in told))


def _row(line: Line, text: str) -> Row:
    if text[:1] not in _HEADS and text[:1] != " " and " | " not in text[:48]:
        return Row(text, line.time, line.start, line.end, None, _level(text), is_redraw=line.is_redraw)
    return _stripped(line, text)


def _stripped(line: Line, text: str) -> Row:
    rank, level, origin = None, _level(text), ""
    while match := _PREFIX.match(text):
        found = next((group for group in match.groups() if group), None)
        rank = int(found) if found and rank is None else rank
        text = text[match.end() :]
    boxed = text[:1] in _BOX and text != ""
    if boxed:
        text = text.strip(_BOX_EDGE)
    head = _TORCH_HEAD.match(text)
    if head:
        level, origin = head["level"] or head["level2"], head["file"] or head["file2"]
        if level == "E" and origin.startswith("torch/_inductor/"):
            level = "W"  # one choice of many that fails is ignored; what ends the run is raised
        text = text[head.end() :]
        tags = _TORCH_TAGS.match(text)
        text = text[tags.end() :] if tags else text
    if rank is None and "Rank " in text:
        named = _RANK_IN_HEAD.search(text)
        rank = int(named.group(1)) if named else None
    return Row(text, line.time, line.start, line.end, rank, level, origin, boxed, line.is_redraw)


def _level(text: str) -> str:
    match = _JSON_LEVEL.search(text) if '{"' in text[:MAX_HEAD] else _LEVEL.search(text, 0, 64)
    return _LEVELS.get(match.group(1), match.group(1)[0].upper()) if match else ""
