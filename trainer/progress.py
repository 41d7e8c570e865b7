"""What long preparation tells while it runs, and how it is asked to stop. It neither prints nor writes files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.signals import StopRequested


@dataclass(frozen=True)
class Progress:
    """One report of a phase: step of num_steps done, its loss if it has one, tokens a second since the last report."""

    phase: str
    step: int
    num_steps: int
    loss: float | None
    tokens_per_s: float


Report = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


def ignore(_: Progress) -> None:
    """Report nothing."""


def never() -> bool:
    """Never ask to stop."""
    return False


@dataclass(frozen=True)
class Talk:
    """How long work speaks, a line or a report at a time, and how it learns that it should stop."""

    say: Callable[[str], None]
    report: Report = ignore
    should_stop: ShouldStop = never

    def raise_if_stopped(self, doing: str) -> None:
        """Raise StopRequested if work should stop; `doing` says what was under way."""
        if self.should_stop():
            raise StopRequested(f"while {doing}")
