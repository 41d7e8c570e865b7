"""Where the command begins: its own imports take a moment, and Ctrl-C in that moment ends it as at any other."""

from __future__ import annotations

import os
import signal
from types import FrameType

from opsctl.errors import EXIT_INTERRUPTED


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)  # nothing is begun yet; an exception could be lost inside an import


def main() -> None:
    """The `opsctl` command."""
    own = signal.getsignal(signal.SIGINT)
    if own is signal.default_int_handler:  # else it is ignored, and shall be
        signal.signal(signal.SIGINT, _leave)
    from opsctl.cli.app import main as run

    signal.signal(signal.SIGINT, own)
    run()
