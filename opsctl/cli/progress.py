"""How a long step is told to the person at the terminal: one row a phase, and one now and then within it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from opsctl import ui

_PERIOD_S = 5.0
_PATIENCE_S = 2.0  # what takes no longer is not worth a word


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


@contextlib.contextmanager
def reading(what: str, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """Yields a function that tells on stderr how many bytes of all were read: a bar on a terminal, else rows."""
    began = told = clock()
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(_bar(what)) if ui.is_talk_screen() else None

        def tell(done: int, total: int) -> None:
            nonlocal told
            now = clock()
            if bar is not None:
                bar(done, total, now - began)
            elif now - told >= _PERIOD_S:
                told = now
                ui.say(f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB read{left_text(done, total, now - began)}")

        yield tell


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int, float], None]]:
    """A bar that shows itself once the work has taken a while."""
    bar = ui.byte_bar()
    task = bar.add_task(what, total=None)

    def draw(done: int, total: int, elapsed_s: float) -> None:
        if elapsed_s >= _PATIENCE_S:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield draw
    finally:
        bar.stop()
