"""The fold over a run's own pace: what a step takes now, and what it took when the run was at its best. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from opsctl.detect.quantiles import median, upper

WARMUP_ROWS = 3
REFERENCE_ROWS, REFERENCE_EVERY = 12, 4
NOISY, NOISY_ROWS, STEADY_ROWS = 1.25, 24, 8
NEWEST_ROWS = 8
FADING_ROWS, FADED = 3, 0.7


@dataclass
class Pace:
    """State of the fold: the newest seconds for one unit of work, a step or a token; changed in place."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    best_s: float | None = None  # the quickest pace the run itself has shown
    best_high_s: float | None = None  # what most rows of that stretch stayed below

    def observe(self, seconds: float, num_rows: int) -> None:
        """Fold the figure of one row in; every few rows is often enough to look for the run's best pace."""
        self.times.append(seconds)
        if num_rows % REFERENCE_EVERY or num_rows < WARMUP_ROWS + REFERENCE_ROWS or len(self.times) < REFERENCE_ROWS:
            return
        times = list(self.times)
        pace, high = median(times[-REFERENCE_ROWS:]), upper(times)
        if high > NOISY * pace:
            pace = median(times)  # of few rows that differ much, some are quick by chance
        if self.best_s is None or pace < self.best_s:
            self.best_s, self.best_high_s = pace, high

    @property
    def newest_s(self) -> float | None:
        """Median of the newest rows."""
        newest = list(self.times)[-NEWEST_ROWS:]
        return median(newest) if newest else None

    @property
    def usual_s(self) -> float | None:
        """Median of all that is remembered."""
        return median(list(self.times)) if self.times else None

    def present_s(self) -> float | None:
        """Mean of the newest rows without the largest, since one pause is no pace; the usual one while one fades."""
        newest = list(self.times)[-NEWEST_ROWS:]
        if len(newest) < 3:
            return min(newest) if newest else None
        return self.usual_s if _is_fading(newest) else sum(sorted(newest)[:-1]) / (len(newest) - 1)

    def slowdown(self, typical_s: float | None) -> float | None:
        """The present pace over the best known, if that is no chance; `typical_s` is what somebody told."""
        ratio = self.ratio(typical_s)
        is_sure = ratio is None or typical_s or self._is_clearly_slower()
        return ratio if is_sure else min(ratio or 1.0, 1.0)

    def ratio(self, typical_s: float | None = None) -> float | None:
        """The present pace over the best known; None = unknown."""
        if not self.times:
            return None  # what is usual for a run says nothing about how it should be
        should = [pace for pace in (typical_s, self.best_s, self._first_s()) if pace]
        present = self.present_s() or typical_s
        if not should or not present:
            return None
        return present / min(should)

    def _first_s(self) -> float | None:
        times = list(self.times)
        return median(times[: len(times) // 2]) if 4 <= len(times) < 2 * REFERENCE_ROWS else None

    def _is_clearly_slower(self) -> bool:
        """Whether most of the newest rows lie above most of the run's best stretch: steps may differ by nature."""
        if not self.times:
            return False
        times = list(self.times)
        first = times[: len(times) // 2]
        pace = self.best_s or (median(first) if first else 0.0)
        high = self.best_high_s or (upper(first) if first else 0.0)
        now = times[-STEADY_ROWS:]
        is_noisy = high > NOISY * pace or upper(now) > NOISY * median(now)
        wanted = NOISY_ROWS if is_noisy else STEADY_ROWS
        newest = sorted(times[-wanted:])
        is_enough = wanted == STEADY_ROWS or len(times) == self.times.maxlen
        return is_enough and newest[len(newest) // 4] > high


def _is_fading(newest: list[float]) -> bool:
    """Whether the newest rows fall from one peak, as a bar's smoothed rate does after a single pause."""
    tail = newest[newest.index(max(newest)) :]
    falls = all(after < before for before, after in itertools.pairwise(tail))
    return len(tail) > FADING_ROWS and falls and tail[-1] < FADED * tail[0]
