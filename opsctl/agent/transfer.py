"""`put` and `get` on the target: a file or a tree comes in whole or not at all, or goes out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from opsctl.agent.session import Call
from opsctl.errors import ProtocolError
from opsctl.formats.transfer import Moved, Writer, landing, reading, size_of

_TELL_PERIOD_S = 0.5


def put(call: Call) -> Moved:
    """Write the client's uploads at request["path"], or below it as request["name"] where that is a folder."""
    asked = call.request["path"]
    path = landing(Path(asked).expanduser(), call.request["name"], is_folder_meant=asked.endswith("/"))
    told = 0.0
    with Writer(path) as writer:
        for message in call.session.messages():
            writer.take(message["data"] if message.get("type") == "data" else message)
            if time.monotonic() - told >= _TELL_PERIOD_S:
                told = time.monotonic()
                call.session.progress(f"writing {path}", done=writer.num_bytes, total=call.request["num_bytes"])
        return writer.finish()


def get(call: Call) -> dict[str, Any]:
    """Send what lies at request["path"]: its size, then its entries as records, and bytes between them."""
    source = Path(call.request["path"]).expanduser()
    pieces = reading(source)
    first = next(pieces)  # it is there and may be read, or this raises
    if not isinstance(first, dict):
        raise ProtocolError("a transfer begins with an entry")
    call.session.record("size", {"num_bytes": size_of(source), "name": source.resolve().name})
    call.session.record("entry", first)
    for piece in pieces:
        if isinstance(piece, bytes):
            call.session.raw("data", piece)
        else:
            call.session.record("entry", piece)
    return {"path": str(source)}
