"""Schedule, weight decay and clipping."""

from __future__ import annotations

import math

import pytest
import torch

from tests.train.cases import drafter_config
from trainer.model import Drafter
from trainer.optim import clip_gradients, learning_rate, make_optimizer
from trainer.sections import OptimConfig

CONFIG = OptimConfig(lr=1.0, warmup_share=0.1, final_lr_share=0.2)


def rate(step: int) -> float:
    return learning_rate(step, num_steps=100, config=CONFIG)


def test_warmup_is_linear_and_never_zero() -> None:
    assert [rate(step) for step in range(10)] == pytest.approx([(step + 1) / 10 for step in range(10)])


def test_then_a_cosine_goes_down_to_the_final_share() -> None:
    assert rate(10) == pytest.approx(1.0)
    assert rate(55) == pytest.approx(0.6)
    assert rate(100) == pytest.approx(0.2)
    assert all(rate(step) > rate(step + 1) for step in range(10, 99))


def test_steps_beyond_the_last_keep_the_final_rate() -> None:
    assert rate(1000) == pytest.approx(0.2)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert learning_rate(0, num_steps=1, config=OptimConfig(lr=0.5)) == pytest.approx(0.5)


def test_norms_do_not_decay() -> None:
    optimizer = make_optimizer(Drafter(drafter_config()), OptimConfig(weight_decay=0.1))
    decaying, others = optimizer.param_groups
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() == 2 for p in decaying["params"])
    assert all(p.dim() == 1 for p in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(Drafter(drafter_config()).parameters()))


def test_clipping_scales_to_the_norm_and_returns_the_norm_before() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), 3.0)
    assert float(clip_gradients([weight], 1.0)) == pytest.approx(6.0)
    assert float(weight.grad.norm()) == pytest.approx(1.0, rel=1e-4)
    assert math.isclose(float(clip_gradients([weight], 5.0)), 1.0, rel_tol=1e-4)
    assert float(weight.grad.norm()) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"clip_norm": 0.0}, {"warmup_share": 1.5}, {"final_lr_share": -0.1}])
def test_wrong_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        OptimConfig(**wrong)
