"""How long nothing was heard of what is due, and what that means. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Silence:
    """How long nothing was heard of what is due, and when that is odd (`stall_s`) or too long (`hang_s`)."""

    since_s: float
    stall_s: float
    hang_s: float
    phase: str
    due_s: float = 0.0  # the longest usual time between two progress rows, where steps are due

    @property
    def text(self) -> str:
        """The silence in words, with its limits."""
        what = "no step" if self.phase == "train" else f"nothing ({self.phase})"
        odd = f"{self.stall_s:.1f}" if self.stall_s < 10 else f"{self.stall_s:.0f}"
        return f"{what} for {self.since_s:.0f} s; odd after {odd} s, too long after {self.hang_s:.0f} s"

    @property
    def is_stalled(self) -> bool:
        """Longer than the run's own pace explains."""
        return self.since_s > self.stall_s

    @property
    def is_over(self) -> bool:
        """Longer than this phase may take."""
        return self.since_s > self.hang_s

    @property
    def fade(self) -> float:
        """How many times slower than its last figures a run is at least, once steps have stopped: 1 while they come."""
        return max(self.since_s / self.due_s, 1.0) if self.due_s and self.is_stalled else 1.0
