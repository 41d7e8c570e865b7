"""The whole traceback at a place in a log: its chain of exceptions, of one rank, without launchers' prefixes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from opsctl.detect import lines
from opsctl.detect.rows import Row, rows
from opsctl.detect.source import Source
from opsctl.ops.material import Material

AROUND_BYTES = 1 << 16  # how far the other exceptions of a chain may lie
HEADER = "Traceback (most recent call last)"
CHAINS = ("During handling of the above exception", "The above exception was the direct cause")
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?::|$)")


def traceback_at(material: Material, source: Source) -> tuple[str, ...]:
    """The rows of the traceback that `source` is a part of; at least the rows of `source` itself."""
    found = [row for row in _rows(material, source) if source.rank in (None, row.rank)]
    inside = [index for index, row in enumerate(found) if row.start < source.end and row.end > source.start]
    if not inside:
        return (source.text,)
    first, last = _first(found, inside[0]), _last(found, inside[-1])
    return tuple(row.text for row in found[first : last + 1])


def _rows(material: Material, source: Source) -> Iterator[Row]:
    begin = max(0, source.start - AROUND_BYTES)
    data = _read(material, begin, source.end + AROUND_BYTES - begin)
    cut = data.find(b"\n") + 1 if begin else 0  # the first row there is perhaps not whole
    state, found = lines.split(lines.LineState(begin + cut, columns=material.columns), data[cut:], 0.0)
    for line in (*found, *lines.flush(state, 0.0)[1]):
        yield from rows(line)


def _read(material: Material, begin: int, size: int) -> bytes:
    if isinstance(material.log, Path):
        with material.log.open("rb") as file:
            file.seek(begin)
            return file.read(size)
    return (material.log or b"")[begin : begin + size]


def _first(found: Sequence[Row], index: int) -> int:
    """The header of the chain's first exception; `index` is in its last one."""
    while True:
        before = _next_told(found, index, -1)
        if before is None or not found[before].text.startswith(CHAINS):
            return index
        headers = [at for at in range(before) if HEADER in found[at].text]
        if not headers:
            return index
        index = headers[-1]


def _last(found: Sequence[Row], index: int) -> int:
    """The row that names the chain's last exception."""
    while True:
        after = _next_told(found, index, 1)
        if after is None or not found[after].text.startswith(CHAINS):
            return index
        header = next((at for at in range(after, len(found)) if HEADER in found[at].text), None)
        ends = (at for at in range(header + 1, len(found)) if _NAMED.match(found[at].text)) if header else iter(())
        index = next(ends, index)
        if index <= after:
            return index


def _next_told(found: Sequence[Row], index: int, step: int) -> int | None:
    """The nearest row that is not blank, in one direction."""
    index += step
    while 0 <= index < len(found):
        if found[index].text.strip():
            return index
        index += step
    return None
