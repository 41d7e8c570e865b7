"""What the watch screen is drawn with: a frame's size and clock, and how each verdict looks. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from opsctl.cli.gauges import clean, sparkline

# verdict -> (symbol, its ASCII form, style, what it means)
LOOKS: dict[str, tuple[str, str, str, str]] = {
    "starting": ("\u25d4", "o", "bold cyan", "no step yet, and nothing wrong"),
    "healthy": ("\u25cf", "*", "bold green", "runs as it should"),
    "degraded": ("\u25b2", "!", "bold yellow", "runs on with a real problem"),
    "eager_fallback": ("\u25bc", "!", "bold magenta", "compiled code was silently replaced by eager code"),
    "hung": ("\u25a0", "#", "bold red", "alive, but the progress that is due is absent"),
    "crashed": ("\u2716", "X", "bold red", "ended by a failure, or a part of it failed"),
    "finished": ("\u2714", "+", "bold green", "ended as intended"),
    "stopped": ("\u25fc", "-", "bold blue", "ended by its operator or by preemption"),
    "unknown": ("?", "?", "bold yellow", "there is not enough to go by"),
}
QUIET = frozenset({"starting", "healthy", "finished"})
SEVERITIES = {"info": "cyan", "warning": "yellow", "error": "red", "fatal": "bold red"}
LABEL = "dim"


@dataclass(frozen=True)
class Frame:
    """What the rows are drawn for: `now` is the target's clock."""

    width: int
    now: float
    is_ascii: bool = False

    def spark(self, values: Sequence[float | None], width: int, low: float | None, high: float | None) -> str:
        """A sparkline in this frame's characters."""
        return sparkline(values, width=width, low=low, high=high, is_ascii=self.is_ascii)

    def cut(self, text: Text) -> Text:
        """The text on one row of this frame."""
        text.no_wrap = True
        text.truncate(self.width, overflow="crop" if self.is_ascii else "ellipsis")
        return text

    def swing(self, values: Sequence[float | None], width: int, least: float) -> str:
        """A sparkline that shows change: its scale spans the values, and at least `least` around them."""
        known = [value for value in values[-width:] if value is not None] if width > 0 else []
        if not known:
            return " " * max(0, width)
        middle, span = (max(known) + min(known)) / 2, max(max(known) - min(known), least)
        return self.spark(values, width, middle - span / 2, middle + span / 2)

    def sides(self, left: Text, right: Text) -> Text:
        """One row with text on both sides; the right one gives way."""
        if not right:
            return self.cut(left)
        gap = self.width - left.cell_len - right.cell_len
        return self.cut(left) if gap < 1 else Text.assemble(left, " " * gap, right, no_wrap=True)

    def wrapped(self, lead: str, text: str, max_rows: int) -> list[str]:
        """The text over at most `max_rows` rows, the first with its lead; a cut is marked."""
        return textwrap.wrap(
            clean(text),
            self.width,
            initial_indent=lead,
            subsequent_indent=" " * len(lead),
            max_lines=max(1, max_rows),
            placeholder=" ..." if self.is_ascii else " \u2026",
        )


def looks(verdict: str, *, is_ascii: bool = False) -> tuple[str, str]:
    """The symbol and the style of a verdict."""
    symbol, plain, style, _ = LOOKS.get(verdict, LOOKS["unknown"])
    return (plain if is_ascii else symbol), style


def rule(frame: Frame, title: str) -> Text:
    """A row that parts two sections."""
    line = "-" if frame.is_ascii else "\u2500"
    row = Text.assemble((line * 2, LABEL), f" {title} ")
    return frame.cut(row.append(line * max(0, frame.width - row.cell_len), LABEL))
