"""Loss and gradient norm: not a number row after row, a level left for good, and what looks like it and is not."""

from __future__ import annotations

import math

import pytest

from opsctl.detect.loss import Losses
from opsctl.detect.steps import StepRow

NAN = math.nan


def cause(losses: list[float], gradients: list[float] | None = None) -> str:
    fold = Losses()
    for index, loss in enumerate(losses):
        fold.observe(StepRow("train", index, loss=loss, grad_norm=gradients[index] if gradients else None))
    opinion = fold.opinion()
    return opinion.cause if opinion else ""


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.4, 2.3, NAN, NAN], "nan_loss"),
        ([2.4, 2.3, math.inf, math.inf], "nan_loss"),
        ([2.4, NAN, 2.3, 2.2], ""),
        ([2.4, 2.3, 2.2, NAN], ""),
        ([0.72, 0.72, 0.71, 20.4, 19.5, 18.6, 17.7], "loss_divergence"),
        ([2.91, 2.85, 2.83, 2.80, 2.79, 2.78, 4.9, 7.8, 9.1, 10.2, 10.4], "loss_divergence"),
        ([2.9, 2.8, 2.8, 2.8, 7.9, 2.8, 2.8, 2.8], ""),
        ([2.9, 2.8, 2.8, 2.8, 2.8, 5.9, 5.6, 5.3, 3.1, 2.8], ""),
        ([2.9, 2.8, 2.8, 2.8, 2.8, 5.9, 5.6, 5.3, 5.4, 5.6], "loss_divergence"),
        ([11.2, 10.8, 9.9, 8.7, 7.9, 7.1, 6.6, 6.2], ""),
        ([0.5, 2.0, 0.4, 1.9, 0.6, 2.1, 1.8, 2.2, 1.9], ""),
        ([-1.0, -1.2, -1.1, -0.2, -0.1, -0.1], ""),
        ([2.5] * 300 + [2.6, 2.7, 2.8], ""),
    ],
)
def test_series_of_losses(losses: list[float], expected: str) -> None:
    assert cause(losses) == expected


def test_a_slow_climb_far_above_the_best_level_is_told() -> None:
    climb = [2.0] * 200 + [2.0 + step * 0.01 for step in range(800)]
    assert cause(climb) == "loss_divergence"


def test_a_gradient_that_is_not_finite_now_and_then_is_normal() -> None:
    assert cause([2.0] * 8, [NAN, 1.0, 1.0, NAN, 1.0, NAN, NAN, 1.0]) == ""
    assert cause([2.0] * 8, [1.0, 1.0, 1.0, 1.0, 1.0, NAN, NAN, NAN]) == "nan_loss"


def test_a_loss_of_exactly_zero_with_a_broken_gradient_is_no_loss() -> None:
    assert cause([0.2, 0.0, 0.0], [1.0, NAN, NAN]) == "nan_loss"
    assert cause([0.2, 0.0, 0.0], [1.0, 1.0, 1.0]) == ""
