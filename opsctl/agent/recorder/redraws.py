"""Thins the redraws of progress bars to one a second and keeps every other byte. Pure: time comes with the data."""

from __future__ import annotations

import re
from dataclasses import dataclass

KEEP_PERIOD_S = 1.0
MAX_FRAME_BYTES = 4096
_END = re.compile(rb"\r+\n|\n|\r+")
# what a bar draws: text, tabs, backspaces, escapes; other control bytes make it data, and data is kept
_FRAME = re.compile(rb"[^\x00-\x07\x0a-\x0c\x0e-\x1a\x1c-\x1f\x7f]*\r+\Z")
_NEVER = float("-inf")


@dataclass
class Redraws:
    """What is held back of the row that is being drawn; a frame is a piece that ends in carriage returns.

    The first frame of a row and every row's last state are kept, so that a log read later tells the same.
    """

    held: bytes = b""  # the newest frame not kept yet
    partial: bytes = b""  # the piece not ended yet, where the row has been redrawn before
    due: float | None = None  # when `overdue` must hand out what is held
    _kept: float = _NEVER  # when a frame of this row was kept last
    _is_redrawn: bool = False
    _is_open: bool = False  # a part of the piece not ended yet has gone out already

    def feed(self, data: bytes, now: float) -> bytes:
        """The bytes to keep now; the rest waits for `overdue` or is superseded."""
        if not self._is_redrawn and not self.partial and b"\r" not in data:
            self._is_open = not data.endswith(b"\n")
            return data
        data = self.partial + data
        out: list[bytes] = []
        position = 0
        for match in _END.finditer(data):
            if match.end() == len(data) and data[-1] != 10:
                break  # a newline may follow, and make it the end of the row
            self._piece(data[position : match.end()], now, out)
            position = match.end()
        self._rest(data[position:], out)
        self._set_due(now)
        return b"".join(out)

    def overdue(self, now: float) -> bytes:
        """What has waited its second: the newest frame, or the piece not ended yet where nothing else is held."""
        if not self.held:
            return self.release(now)
        out, self.held, self.due = self.held, b"", None
        self._kept = now
        self._set_due(now)
        return out

    def release(self, now: float) -> bytes:
        """Everything that is held: for the end."""
        out = self.held + self.partial
        if self.held or self.partial:
            self._is_open = not out.endswith(b"\r")
            self._kept = now
        self.held, self.partial, self.due = b"", b"", None
        return out

    def _piece(self, piece: bytes, now: float, out: list[bytes]) -> None:
        if piece.endswith(b"\n"):
            if self.held and not piece.strip():
                out.append(self.held)
            self.held, self._kept, self._is_redrawn = b"", _NEVER, False
            out.append(piece)
        else:
            self._frame(piece, now, out)
            self._is_redrawn = True
        self._is_open = False

    def _frame(self, frame: bytes, now: float, out: list[bytes]) -> None:
        if self._is_open or len(frame) > MAX_FRAME_BYTES or not _FRAME.match(frame):
            out.append(self.held + frame)
            self.held = b""
        elif now - self._kept >= KEEP_PERIOD_S:
            out.append(frame)
            self.held, self.due = b"", None  # what comes next waits its own second
            self._kept = now if frame.strip(b"\r") else self._kept  # tqdm begins with the carriage return
        else:
            self.held = frame

    def _rest(self, rest: bytes, out: list[bytes]) -> None:
        """The end of the data: held where it may become a frame, else handed on at once."""
        may_be_frame = (self._is_redrawn or rest.endswith(b"\r")) and not self._is_open
        if may_be_frame and len(rest) <= MAX_FRAME_BYTES:
            self.partial = rest
            return
        self.partial = b""
        if rest:
            out.append(self.held + rest)
            self.held = b""
            self._is_open = True

    def _set_due(self, now: float) -> None:
        if not self.held and not self.partial:
            self.due = None
        elif self.due is None:
            self.due = now + KEEP_PERIOD_S
