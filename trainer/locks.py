"""A lock between processes, freed by the kernel when its owner dies. It waits until told to stop waiting."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.progress import Talk

POLL_S = 0.2


@contextmanager
def exclusive(path: Path, talk: Talk) -> Iterator[None]:
    """Hold the lock file `path` inside; raises StopRequested when asked to stop while another process holds it."""
    with path.open("a") as file:
        while not _try_lock(file.fileno()):
            talk.raise_if_stopped(f"waiting for {path}")
            time.sleep(POLL_S)
        yield  # closing the file frees the lock


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
