"""One optimizer update: from the ranks' batches to figures, with nothing changed if a number is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.batch import Batch
from trainer.blocks import IGNORED
from trainer.data import PackedRows
from trainer.errors import NonFiniteError
from trainer.loss import accept_lengths
from trainer.model import Drafter
from trainer.optim import clip_gradients, set_learning_rate
from trainer.ranks import Ranks, Share
from trainer.step import Frozen, Functions, StepInputs, spread_slots, step_loss
from trainer.warmup import StepShape


@dataclass(frozen=True)
class Parts:
    """What a training step works with, built once."""

    hidden: Callable[[Batch], Tensor]  # the verifier's states [B, S, C] of a batch
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


def update(parts: Parts, inputs: StepInputs, total: Share, *, ranks: Ranks, lr: float, clip_norm: float) -> StepFigures:
    """Do one update with the batches of all ranks; raises NonFiniteError before the optimizer has seen a bad gradient.

    `total` is what all ranks bring together. Where nobody brings a supervised slot, all skip the step.
    """
    if not total.num_slots:
        return StepFigures(loss=None, grad_norm=None, accept_len=None, num_slots=0)
    sums_3 = gradients(parts, inputs, total, ranks=ranks)
    grad_norm = clip_gradients(parts.drafter.parameters(), clip_norm)
    # The one wait for the device in a step: an update with a bad gradient could not be taken back.
    loss, accepted, num_blocks, norm = torch.cat((sums_3, grad_norm.reshape(1))).tolist()
    figures = StepFigures(loss, norm, accepted / num_blocks, total.num_slots)
    refuse_non_finite(figures)
    set_learning_rate(parts.optimizer, lr)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    return figures


def gradients(parts: Parts, inputs: StepInputs, total: Share, *, ranks: Ranks) -> Tensor:
    """Leave the gradient of all ranks' batches in the drafter; return their loss, accepted slots and blocks [3].

    The loss's denominator is the weight of all ranks, so the sum of the gradients is that of one rank with the joined
    batch. A rank without a supervised slot adds zeros, and takes part in every sum.
    """
    sums_3 = torch.zeros(3, device=parts.frozen.embed_VH.device)
    if inputs.supervised.num_rows:
        target_hidden_BSC = parts.hidden(inputs.batch)
        chunk_slots = parts.shape.chunk_slots
        sums = step_loss(
            parts.drafter, parts.functions, parts.frozen, inputs, target_hidden_BSC, chunk_slots=chunk_slots
        )
        loss = sums.weighted_ce / total.weight
        torch.autograd.backward(loss)
        sums_3 = torch.stack((loss.detach(), *accepted_slots(sums.is_correct_L, inputs)))
    ranks.add_up_gradients(parts.drafter.parameters())
    ranks.add_up(sums_3)
    return sums_3


def refuse_non_finite(figures: StepFigures) -> None:
    """Raise NonFiniteError if the loss or the gradient norm is not finite."""
    for name in ("loss", "grad_norm"):
        value = getattr(figures, name)
        if not math.isfinite(value):
            raise NonFiniteError(f"{name} is {value}; stopped before the update (lower optim.lr, or look at the batch)")


def accepted_slots(is_correct_L: Tensor, inputs: StepInputs) -> tuple[Tensor, Tensor]:
    """Return the slots right in a row, bonus left out, summed over blocks with a supervised slot, and those blocks."""
    is_supervised = inputs.blocks.label_BNs != IGNORED
    lengths = accept_lengths(spread_slots(is_correct_L, inputs), is_supervised, stop_at_gap=False)
    return lengths.sum().float(), is_supervised.any(dim=-1).sum().float()
