"""One command as a child of a call: its output streams, its outcome is typed, it ends with the call."""

from __future__ import annotations

import base64
import os
import selectors
import subprocess
from typing import Any

from opsctl.agent.session import Call
from opsctl.errors import CommandFailed, MissingTool
from opsctl.records import Outcome

_CHUNK_BYTES = 1 << 16


def _start(call: Call, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:
        return call.session.spawn(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise MissingTool(f"no program {argv[0]!r} on the target", hint="check the name and PATH there") from None
    except OSError as error:
        raise CommandFailed(f"cannot start {argv[0]!r}: {error.strerror}") from None


def _stream(call: Call, child: subprocess.Popen[bytes]) -> None:
    with selectors.DefaultSelector() as selector:
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, _CHUNK_BYTES)
                if data:
                    call.session.record(key.data, base64.b64encode(data).decode())
                else:
                    selector.unregister(key.fileobj)


def run(call: Call) -> Any:
    """Run request["argv"]; streams stdout and stderr records (base64), returns the Outcome."""
    child = _start(call, tuple(call.request["argv"]))
    _stream(call, child)
    status = child.wait()
    return Outcome("killed", signal=-status) if status < 0 else Outcome("exited", code=status)
