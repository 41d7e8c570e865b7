"""Quantiles of a few numbers. Pure."""

from __future__ import annotations

import math

UPPER = 0.8


def upper(values: list[float]) -> float:
    """What most values stay below."""
    return sorted(values)[math.ceil(UPPER * len(values)) - 1]


def median(values: list[float]) -> float:
    """The middle value; of an even number, the lower of the two."""
    return sorted(values)[(len(values) - 1) // 2]
