"""Takes what a client sends into a file. Whether it is the right thing is for the caller to check."""

from __future__ import annotations

import os
import time
from pathlib import Path

from opsctl.agent.session import Call

_TELL_PERIOD_S = 0.5


def receive(call: Call, part: Path, doing: str, *, start: int = 0, total: int | None = None) -> None:
    """Put the client's uploads into `part` from byte `start` on, and on disk; what it held behind that is dropped.

    Progress is told as `doing`, in bytes. Whatever came before a link was cut stays.
    """
    done, told = start, 0.0
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.truncate()
        for piece in call.session.uploads():
            file.write(piece)
            done += len(piece)
            if time.monotonic() - told >= _TELL_PERIOD_S:
                told = time.monotonic()
                call.session.progress(doing, done=done, total=total)
        file.flush()
        os.fsync(file.fileno())
