"""The fold over loss and gradient norm: not a number row after row, or a level left for good."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from opsctl.detect.context import Opinion
from opsctl.detect.quantiles import median
from opsctl.detect.steps import StepRow

NAN_ROWS = 2
NAN_GRADIENT_ROWS = 3
NEWEST = 3
FAR, LONG_ROWS = 3.0, 5  # a leap is told after three rows where it is far, after five else: spikes come back
MIN_LEVEL_ROWS = 3
LEAP, CLIMB = 1.8, 2.5
BOUND_ROWS = 10
SPREADS = 3
FEW_ROWS = 5


@dataclass
class Losses:
    """State of the fold; changed in place. Of the losses only finite ones are kept."""

    level: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))
    nan_rows: int = 0
    nan_gradient_rows: int = 0
    bound: float = math.inf
    best: float = math.inf  # the lowest level so far: a slow climb takes the level along
    best_spread: float = 0.0
    since_bound: int = 0
    above: int = 0  # rows in a row that lie above the bound
    last: str = ""

    def observe(self, row: StepRow) -> None:
        """Fold one training row in."""
        loss, grad_norm = row.loss, row.grad_norm
        if grad_norm is not None:
            self.nan_gradient_rows = 0 if math.isfinite(grad_norm) else self.nan_gradient_rows + 1
        if loss is None:
            return
        if not math.isfinite(loss) or (loss == 0.0 and self.nan_gradient_rows):
            self.nan_rows += 1
            self.last = f"loss {loss}" + (f" with gradient norm {grad_norm}" if grad_norm is not None else "")
            return
        self.nan_rows = 0
        self._settle(loss)

    def _settle(self, loss: float) -> None:
        """The oldest of the newest rows joins the level, unless it already lies far above it."""
        if len(self.newest) == NEWEST and self.newest[0] <= self.bound:
            self.level.append(self.newest[0])
            self.since_bound += 1
            if len(self.level) <= BOUND_ROWS or self.since_bound >= BOUND_ROWS:
                self.bound, self.since_bound = self._bound(), 0
        self.newest.append(loss)
        self.above = self.above + 1 if loss > self.bound else 0

    def _bound(self) -> float:
        """What a loss must exceed to have left its level; sorting for every row would cost too much."""
        if len(self.level) < MIN_LEVEL_ROWS:
            return math.inf
        usual = sorted(self.level)
        spared = max(len(usual) // 10, 1 if len(usual) >= FEW_ROWS else 0)  # stragglers at the top
        middle, low, high = usual[(len(usual) - 1) // 2], usual[len(usual) // 10], usual[-1 - spared]
        if middle <= 0:
            return math.inf
        leap = max(LEAP * middle, high + SPREADS * (high - low))
        if len(usual) < BOUND_ROWS:
            return leap
        if middle < self.best:
            self.best, self.best_spread = middle, high - low
        return min(leap, max(CLIMB * self.best, self.best + SPREADS * self.best_spread))

    @property
    def is_alarming(self) -> bool:
        """Whether the newest numbers are worth an opinion; cheap."""
        return self.nan_rows > 0 or self.nan_gradient_rows > 0 or (bool(self.newest) and self.newest[-1] > self.bound)

    def opinion(self) -> Opinion | None:
        """Degraded where nothing is learned any more; None where the numbers look sound."""
        if self.nan_rows >= NAN_ROWS:
            return self._opinion("nan_loss", 0.95, f"{self.nan_rows} rows in a row: {self.last}")
        if self.nan_gradient_rows >= NAN_GRADIENT_ROWS:
            return self._opinion(
                "nan_loss", 0.85, f"gradient norm not finite in {self.nan_gradient_rows} rows in a row"
            )
        if self._has_left():
            text = f"loss {self.newest[-1]:.4g}, before {median(list(self.level)):.4g}, and it does not come back"
            return self._opinion("loss_divergence", 0.85, text)
        return None

    def _has_left(self) -> bool:
        """Whether the newest rows have left their level: far, or for long."""
        if len(self.newest) < NEWEST or min(self.newest) <= self.bound:
            return False
        return self.above >= LONG_ROWS or min(self.newest) > FAR * median(list(self.level))

    @staticmethod
    def _opinion(cause: str, confidence: float, text: str) -> Opinion:
        return Opinion("degraded", cause, confidence, (text,))
