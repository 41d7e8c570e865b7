"""A run's own figures, to compare later runs with. Pure."""

from __future__ import annotations

from opsctl.detect.gpus import Gpus
from opsctl.detect.state import State
from opsctl.records.baseline import Baseline


def baseline(state: State) -> Baseline:
    """What this run is like by now."""
    progress, levels = state.progress, _levels(state.gpus)
    used = max((high for high, _ in levels), default=None)
    swing = max((high - low for high, low in levels), default=None)
    return Baseline(progress.usual_s, progress.tokens_per_s, used, swing, progress.num_rows)


def _levels(gpus: Gpus) -> list[tuple[float, float]]:
    """The highest and the lowest memory in MiB of each GPU in its newest minutes of training."""
    used = [[point.used for point in gpu.window() if point.used is not None] for gpu in gpus.gpus.values()]
    return [(max(series), min(series)) for series in used if series]
