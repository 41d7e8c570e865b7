"""Rows of metrics.jsonl to numbers: what a job tells about itself, one JSON object a line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from opsctl.detect.steps import MAX_COUNT, StepRow

HUGE = 1e300  # JSON has integers that no float holds
COUNTERS = (
    *("recompiles", "graph_breaks", "cudagraph_skips"),
    *("fx_misses", "aot_misses", "fx_bypasses", "aot_bypasses", "compiler_starts"),  # of the compile cache
)


@dataclass(frozen=True)
class MetricsRow:
    """One row: progress, the phase it names, and torch's own counters where it carries them."""

    row: StepRow
    phase: str
    counters: dict[str, int]
    memory_allocated_mib: float | None
    time: float | None = None  # when the job wrote it, by the job's clock


def parse(text: str) -> MetricsRow | None:
    """The row that `text` holds; None for one that is cut or no object.

    >>> parse('{"step": 3, "loss": 2.5, "recompiles": 1}').counters
    {'recompiles': 1}

    >>> parse('{"step": 3, "tokens_per_s": NaN, "loss": Infinity}').row[1:7]
    (3, None, nan, None, None, None)
    """
    try:
        values = json.loads(text)
    except ValueError:
        return None  # a row cut in the middle says nothing
    if not isinstance(values, dict):
        return None
    phase = values.get("phase") if isinstance(values.get("phase"), str) else ""
    counters = {name: count for name in COUNTERS if (count := _count(values, name)) is not None}
    return MetricsRow(
        _progress(values, str(phase)),
        str(phase),
        counters,
        _number(values, "memory_allocated_mib"),
        _number(values, "time"),
    )


def _progress(values: dict[str, Any], phase: str) -> StepRow:
    # `tokens` may count one step or all so far: it tells no step time, the rows' own times do
    return StepRow(
        "train" if phase in ("", "train", "training") else "eval" if phase.startswith("eval") else "prepare",
        _count(values, "step"),
        _count(values, "num_steps"),
        _loss(values, "loss"),
        _loss(values, "grad_norm"),
        _number(values, "step_s"),
        _number(values, "tokens_per_s"),
    )


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= HUGE:
        return None  # what is not finite, too
    return float(value)


def _count(values: dict[str, Any], name: str) -> int | None:
    value = _number(values, name)
    return int(value) if value is not None and abs(value) < MAX_COUNT else None


def _loss(values: dict[str, Any], name: str) -> float | None:
    """JSON has no nan: writers put null or a word there."""
    value = values.get(name)
    if name in values and (value is None or (isinstance(value, str) and value.lower() in ("nan", "inf", "-inf"))):
        return math.nan
    if isinstance(value, float) and not math.isfinite(value):
        return math.nan
    return _number(values, name)
