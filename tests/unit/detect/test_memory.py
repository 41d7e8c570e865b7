"""Named memory series: flat, sawtooth, leak, spike, evaluation plateaus, a reset, a coarse or fine clock."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from opsctl.detect import memory

TOTAL = 81559.0
SAW = [22010, 40880, 24100, 61220, 23990, 35120, 68810, 25020, 47010, 71220, 24440, 55020, 26900, 73330, 25100, 38880]
FLAT = [61230.0, 61231.0] * 10
EVAL = [31020.0] * 5 + [44800, 44810, 36020] + [31020] * 5 + [44800, 44810, 36020] + [31020] * 4
LEAK = [20000.0 + 700 * step for step in range(20)]
STAIRS = [30000.0 + 2400 * (step // 3) for step in range(24)]
WARMUP = [8000.0, 14000, 22000, 30000, 34000, 36000, *[36100.0] * 10]
SPIKE = [30000.0] * 8 + [70000.0] + [30000.0] * 8
RESET = [30000.0] * 8 + [400.0] + [30000.0] * 8
SLOW = [30000.0 + 90 * step for step in range(20)]


def times(number: int, period_s: float = 10.0) -> list[float]:
    return [period_s * index for index in range(number)]


@pytest.mark.parametrize("period_s", [0.5, 3.0, 60.0])
def test_a_sawtooth_is_seen_at_any_period_of_samples(period_s: float) -> None:
    found = memory.sawtooth(times(len(SAW), period_s), SAW, TOTAL)
    assert found is not None
    assert (found.low_mib, found.high_mib) == (22010, 73330)


def test_a_sawtooth_sampled_often_is_seen_too() -> None:
    fine = [
        value for before, after in itertools.pairwise(SAW) for value in (before, before, (before + after) / 2, after)
    ]
    assert memory.sawtooth(times(len(fine), 0.5), fine, TOTAL) is not None


@pytest.mark.parametrize("series", [FLAT, EVAL, LEAK, WARMUP, SPIKE, RESET, SLOW, [], [1.0]])
def test_what_is_no_sawtooth(series: list[float]) -> None:
    assert memory.sawtooth(times(len(series)), series, TOTAL) is None


def test_many_evaluations_are_still_a_plateau_with_visits() -> None:
    assert memory.sawtooth(times(3 * len(EVAL), 2.0), EVAL * 3, TOTAL) is None


@pytest.mark.parametrize("series", [LEAK, STAIRS])
def test_growth(series: list[float]) -> None:
    found = memory.growth(times(len(series), 15), series, TOTAL)
    assert found is not None
    assert found.full_in_s is not None
    assert 0 < found.full_in_s < 3600


@pytest.mark.parametrize("series", [FLAT, EVAL, SAW, WARMUP, SPIKE, RESET, LEAK[:6]])
def test_what_is_no_growth(series: list[float]) -> None:
    assert memory.growth(times(len(series), 15), series, TOTAL) is None


def test_growth_that_will_settle_below_the_size_of_the_gpu_is_none() -> None:
    cache = [50000.0 + 20000.0 * (1.0 - math.exp(-step / 20)) for step in range(60)]
    seen = [memory.growth(times(n, 15), cache[:n], TOTAL) for n in range(12, 61)]
    assert not any(seen)
    ahead = [50000.0 + 60000.0 * (1.0 - math.exp(-step / 20)) for step in range(14)]
    assert memory.growth(times(14, 15), ahead, TOTAL) is not None


def test_floors_of_swinging_memory_that_rise_by_chance_are_no_growth() -> None:
    source = random.Random(5)
    runs = [[source.uniform(30000.0, 60000.0) for _ in range(14)] for _ in range(400)]
    assert not any(memory.growth(times(14, 10), run, TOTAL) for run in runs)


def test_growth_that_fills_nothing_within_a_day_is_none() -> None:
    slow = [30000.0 + 60 * step for step in range(40)]
    assert memory.growth(times(40, 3600), slow, TOTAL) is None


def test_growth_of_a_gpu_of_unknown_size_has_no_end() -> None:
    found = memory.growth(times(len(LEAK), 15), LEAK, None)
    assert found is not None
    assert found.full_in_s is None


def test_flat_is_within_one_percent() -> None:
    assert memory.is_flat(FLAT)
    assert not memory.is_flat(LEAK)
    assert not memory.is_flat([])
