"""The shape of one GPU's memory over time: flat, a sawtooth, or growth. Pure functions over series."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

SWING_SHARE = 0.06  # of the GPU's memory, for one move up or down to count
SWING_FLOOR_MIB = 768.0
MIN_MOVES = 5
MOVES_PER_SAMPLE = 0.4
MOVES_PER_S = 1 / 15
RESTING_SHARE = 0.5  # a plateau with visits elsewhere (evaluation) is no sawtooth
FLAT_SHARE = 0.01
GROWTH_SHARE = 0.03
GROWTH_FLOOR_MIB = 1024.0
GROWTH_SPAN_S = 100.0
GROWTH_SAMPLES = 6
CLIMBING_SHARE = 0.8
SLOWING, SETTLING_MARGIN = 0.95, 1.3
HORIZON_S = 24 * 3600.0


@dataclass(frozen=True)
class Sawtooth:
    """Memory that swings: how often in the series, between which levels."""

    moves: int
    low_mib: float
    high_mib: float
    span_s: float


@dataclass(frozen=True)
class Growth:
    """Memory that rises and does not come back; `full_in_s` at this pace, None where the size is unknown."""

    from_mib: float
    to_mib: float
    span_s: float
    full_in_s: float | None


def sawtooth(times: Sequence[float], used: Sequence[float], total_mib: float | None) -> Sawtooth | None:
    """The swings of a series, None where it is flat, rests at one level, or moves too seldom."""
    if len(used) < MIN_MOVES + 1:
        return None
    threshold = max(SWING_SHARE * (total_mib or max(used)), SWING_FLOOR_MIB)
    if max(used) - min(used) < threshold:
        return None  # the usual case, and the cheap one
    moves = _moves(used, threshold)
    span = max(times[-1] - times[0], 1e-9)
    often = moves >= MOVES_PER_SAMPLE * len(used) or moves / span >= MOVES_PER_S
    if moves < MIN_MOVES or not often or _resting(used, threshold / 2) > RESTING_SHARE:
        return None
    return Sawtooth(moves, min(used), max(used), span)


def _moves(used: Sequence[float], threshold: float) -> int:
    """Turns of the series, counting only moves of at least `threshold`."""
    moves, direction, extreme = 0, 0, used[0]
    for value in used[1:]:
        if (direction >= 0 and value > extreme) or (direction <= 0 and value < extreme):
            if direction == 0 and abs(value - extreme) >= threshold:
                direction, moves, extreme = (1 if value > extreme else -1), moves + 1, value
            elif direction != 0:
                extreme = value
        elif abs(value - extreme) >= threshold:
            direction, moves, extreme = -direction, moves + 1, value
    return moves


def _resting(used: Sequence[float], width: float) -> float:
    """Share of the series' time spent unmoved at its most frequent level."""
    pairs = list(itertools.pairwise(used))
    at_rest = [sum(abs(a - level) <= width and abs(b - level) <= width for a, b in pairs) for level in set(_thin(used))]
    return max(at_rest) / len(pairs)


def _thin(used: Sequence[float]) -> Sequence[float]:
    return used if len(used) <= 24 else used[:: len(used) // 24 + 1]


def is_flat(used: Sequence[float]) -> bool:
    """Whether a series stays within one percent of its level."""
    return bool(used) and max(used) - min(used) <= FLAT_SHARE * max(used)


def growth(
    times: Sequence[float],
    used: Sequence[float],
    total_mib: float | None,
    *,
    most: Sequence[float] = (),
    span_s: float = GROWTH_SPAN_S,
) -> Growth | None:
    """The rise of a series' floor over at least `span_s`, None where it has settled or fills nothing within a day.

    `most` holds the peaks between, where `used` is thinned out to the lowest values.
    """
    if len(used) < GROWTH_SAMPLES or times[-1] - times[0] < span_s or max(used) - min(used) < GROWTH_FLOOR_MIB:
        return None
    floors = _floors(used)
    rises = [after - before for before, after in itertools.pairwise(floors)]
    rise = floors[-1] - floors[0]
    if min(rises) <= 0 or rises[-1] < 0.3 * rise / len(rises):
        return None  # it came back once, or slows down to a level
    if rise < _swing(used, most or used) or rise < max(GROWTH_SHARE * (total_mib or 0.0), GROWTH_FLOOR_MIB):
        return None
    if not _climbs(used) or used[-1] + SETTLING_MARGIN * _still_to_come(rises, len(used)) < (total_mib or 0.0):
        return None
    span = times[-1] - times[0]
    full_in_s = (total_mib - used[-1]) / (rise / (0.75 * span)) if total_mib else None
    if full_in_s is not None and full_in_s > HORIZON_S:
        return None
    return Growth(used[0], used[-1], span, full_in_s)


def _still_to_come(rises: Sequence[float], number: int) -> float:
    """How far a rise that slows down goes on, as an allocator's that has met most sizes; endless where it does not."""
    begins = [round(part * number / 4) for part in range(4)]
    first, last = rises[0] / (begins[1] - begins[0]), rises[-1] / (begins[3] - begins[2])
    ratio = math.sqrt(last / first)
    return last * number / 4 * ratio / (1.0 - ratio) if ratio < SLOWING else math.inf


def _climbs(used: Sequence[float]) -> bool:
    """Whether nearly always the later of two values is no lower: four floors rise by chance, where values are few."""
    pairs = list(itertools.combinations(_thin(used), 2))
    return sum(after >= before for before, after in pairs) >= CLIMBING_SHARE * len(pairs)


def _swing(used: Sequence[float], most: Sequence[float]) -> float:
    """How far the series swings within a quarter: by chance, the floor of what swings may rise a while."""
    return sorted(max(high) - min(low) for high, low in zip(_quarters(most), _quarters(used)))[2]  # noqa: B905 - equal


def _floors(used: Sequence[float]) -> list[float]:
    """The lowest values of the series' four quarters."""
    return [min(quarter) for quarter in _quarters(used)]


def _quarters(used: Sequence[float]) -> list[Sequence[float]]:
    quarter = len(used) / 4
    return [used[round(part * quarter) : round((part + 1) * quarter)] for part in range(4)]
