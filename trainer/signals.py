"""SIGTERM and SIGINT as a request to stop with a checkpoint. Standard library only: it is in place before torch loads.

Where work can be dropped (preparing, compiling, evaluating) a signal raises StopRequested at once; a BaseException, so
that no `except Exception` on the way swallows it. Within `held` (a training step, a checkpoint) it only sets a flag,
which the loop reads between steps. The flag stays set, so a request that a callback of C code swallowed is not lost.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1


def stop_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies, so that no rank outlives its launcher."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


class StopRequested(BaseException):
    """Somebody asked this process to stop; carries the signal's name."""


class StopSignals:
    """Owns the handlers of the stop signals while it is entered."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._holds = 0
        self._pid = os.getpid()
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked worker inherits the handler; its parent decides for it
            return
        is_first = self.requested is None
        self.requested = self.requested or signal.Signals(number).name
        if is_first and not self._holds:  # a second one must not tear what the first one's handling saves
            raise StopRequested(self.requested)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note signals inside: what runs there must not be torn."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def settle(self) -> None:
        """From here on only note signals: the end that is being written stands."""
        self._holds += 1

    def raise_if_requested(self) -> None:
        """Raise StopRequested if a signal came since the start."""
        if self.requested:
            raise StopRequested(self.requested)
