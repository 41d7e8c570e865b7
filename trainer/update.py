"""One optimizer update: from a batch on the device to figures, with nothing changed if a number is not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.blocks import IGNORED
from trainer.data import PackedRows
from trainer.errors import NonFiniteError
from trainer.loss import accept_lengths
from trainer.model import Drafter
from trainer.optim import clip_gradients, set_learning_rate
from trainer.step import Frozen, Functions, StepInputs, spread_slots, step_loss
from trainer.verifier import Verifier
from trainer.warmup import StepShape


@dataclass(frozen=True)
class Parts:
    """What a training step works with, built once."""

    verifier: Verifier
    frozen: Frozen
    drafter: Drafter
    optimizer: torch.optim.Optimizer
    functions: Functions
    rows: PackedRows
    shape: StepShape
    gamma: float


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step; loss is None where no slot of the batch was supervised."""

    loss: float | None
    grad_norm: float | None
    accept_len: float | None
    num_slots: int


def update(parts: Parts, inputs: StepInputs, *, lr: float, clip_norm: float) -> StepFigures:
    """Do one optimizer update; raises NonFiniteError before the optimizer has seen a bad gradient."""
    if not inputs.supervised.num_rows:
        return StepFigures(loss=None, grad_norm=None, accept_len=None, num_slots=0)
    target_hidden_BSC = parts.verifier.hidden(inputs.batch)
    sums = step_loss(
        parts.drafter,
        parts.functions,
        parts.frozen,
        inputs,
        target_hidden_BSC,
        chunk_slots=parts.shape.chunk_slots,
    )
    loss = sums.weighted_ce / sums.weight
    torch.autograd.backward(loss)
    grad_norm = clip_gradients(parts.drafter.parameters(), clip_norm)
    accept_len = mean_accept_length(sums.is_correct_L, inputs)
    # The one wait for the device in a step: an update with a bad gradient could not be taken back.
    loss_value, norm_value, accept_value = torch.stack((loss.detach(), grad_norm, accept_len)).tolist()
    figures = StepFigures(loss_value, norm_value, accept_value, inputs.supervised.num_rows)
    refuse_non_finite(figures)
    set_learning_rate(parts.optimizer, lr)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    return figures


def refuse_non_finite(figures: StepFigures) -> None:
    """Raise NonFiniteError if the loss or the gradient norm is not finite."""
    for name in ("loss", "grad_norm"):
        value = getattr(figures, name)
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value}; stopped before the update (lower optim.lr, or look at the batch)")


def mean_accept_length(is_correct_L: Tensor, inputs: StepInputs) -> Tensor:
    """Return the mean number of slots right in a row, bonus left out, over blocks with a supervised slot."""
    is_supervised = inputs.blocks.label_BNs != IGNORED
    lengths = accept_lengths(spread_slots(is_correct_L, inputs), is_supervised, stop_at_gap=False)
    return lengths.sum() / is_supervised.any(dim=-1).sum().float()
