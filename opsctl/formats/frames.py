"""The rows that client and agent exchange: one JSON object a line, and raw bytes behind one that says `size`.

Shipped inside the agent: standard library only. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from opsctl.errors import ProtocolError

Frame = dict[str, Any]

BEAT = b"{}\n"
# the most that an upload may be ahead of what the agent has used
WINDOW_BYTES = 4 << 20
CHUNK_BYTES = 1 << 18


def frame(message: Frame, data: bytes | None = None) -> bytes:
    """The bytes of one message; `data` follows it as it is.

    >>> frame({"type": "raw"}, b"ab")
    b'{"type":"raw","size":2}\\nab'
    """
    if data is None:
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"
    return frame({**message, "size": len(data)}) + data


class FrameReader:
    """Takes bytes as they come and gives whole messages; raw bytes stand under `data`."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._head: Frame | None = None  # waits for its data

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The messages that `data` completes, beats left out; raises ProtocolError for a row that is no JSON object."""
        self._pending += data
        while (message := self._next()) is not None:
            if message:
                yield message

    def _next(self) -> Frame | None:
        if self._head is None:
            end = self._pending.find(b"\n")
            if end < 0:
                return None
            head = _parse(bytes(self._pending[:end]))
            del self._pending[: end + 1]
            if "size" not in head:
                return head
            self._head = head
        size = self._head["size"]
        if len(self._pending) < size:
            return None
        message, self._head = self._head, None
        with memoryview(self._pending) as pending:  # one copy instead of two: this is where all output passes
            message["data"] = bytes(pending[:size])
        del self._pending[:size]
        return message


def _parse(row: bytes) -> Frame:
    try:
        message = json.loads(row)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ProtocolError(f"no message: {row[:200]!r}")
    return message
