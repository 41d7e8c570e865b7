"""The job's secrets on their way in: over a FIFO, once, kept in memory only."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path

from opsctl.errors import CommandFailed

LIMIT_S = 20.0
_CHUNK_BYTES = 1 << 16


def read_once(fifo: Path) -> dict[str, str]:
    """The names and values that the starter writes into the FIFO, which is then unlinked.

    Raises CommandFailed when nobody writes within LIMIT_S.
    """
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = _read_all(descriptor, time.monotonic() + LIMIT_S)
    finally:
        os.close(descriptor)
        fifo.unlink(missing_ok=True)
    return dict(json.loads(data))


def _read_all(descriptor: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    data = b""
    while not data.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise CommandFailed("the run's secrets did not arrive", hint="start the run again")
        piece = os.read(descriptor, _CHUNK_BYTES)
        if not piece:
            raise CommandFailed("the run's secrets arrived only in part", hint="start the run again")
        data += piece
    return data


def write_once(fifo: Path, secrets: dict[str, str]) -> None:
    """Hand the secrets to the recorder that reads the FIFO; raises CommandFailed when none does."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError as error:  # ENXIO: nobody reads yet
            if time.monotonic() > deadline:
                raise CommandFailed("the run's recorder did not ask for its secrets") from error
            time.sleep(0.02)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps(secrets).encode() + b"\n")
