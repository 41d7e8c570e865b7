"""How a long step is told to the person at the terminal: one row a phase, and one now and then within it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from opsctl import ui

_PERIOD_S = 5.0


def left_text(done: float | None, total: float | None, elapsed_s: float) -> str:
    """What is known of how far a step has come: share and time left.

    >>> left_text(25, 100, 10.0)
    ' (25 %, 30 s left)'
    """
    if not done or not total:
        return ""
    left_s = elapsed_s * (total - done) / done
    return f" ({100 * done / total:.0f} %" + (f", {left_s:.0f} s left)" if 0 < done < total else ")")


def teller(*, quiet: bool = False) -> Callable[[dict[str, Any]], None]:
    """A function that tells progress messages on stderr; with `quiet` it tells nothing."""
    shown: dict[str, Any] = {"phase": None, "told": 0.0, "since": time.monotonic()}

    def tell(message: dict[str, Any]) -> None:
        text = str(message.get("text", ""))
        phase, now = text.partition(":")[0], time.monotonic()
        is_new = phase != shown["phase"]
        if is_new:
            shown.update(phase=phase, since=now)
        if is_new or now - shown["told"] >= _PERIOD_S:
            shown["told"] = now
            elapsed_s = now - shown["since"]  # too early to tell the time left where a phase has just begun
            ui.say(text if is_new else text + left_text(message.get("done"), message.get("total"), elapsed_s))

    return (lambda message: None) if quiet else tell
