"""The drafter's loss: weighted cross-entropy of supervised slots, in chunks, as a numerator and a denominator apart.

The vocabulary logits are the memory of a step, so only supervised slots are projected, a chunk at a time, and each
chunk's gradient is taken at once: its logits are dropped, and nothing has to be computed twice.
Legend: B rows, N blocks, bs slots, L gathered slots, R slots a chunk, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from trainer.blocks import Supervised

ChunkFn = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class LossSums:
    """Sums over the slots of this rank: ranks add numerators and denominators apart before they divide."""

    weighted_ce: Tensor
    weight: float
    ce_L: Tensor
    is_correct_L: Tensor


def loss_chunk(rows_RH: Tensor, head_VH: Tensor, label_R: Tensor, weight_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (sum of weight * ce, ce_R, is_correct_R) of one chunk; the function that is compiled."""
    logits_RV = F.linear(rows_RH, head_VH).float()
    ce_R = F.cross_entropy(logits_RV, label_R, reduction="none")
    is_correct_R = logits_RV.argmax(dim=-1) == label_R
    return (ce_R * weight_R).sum(), ce_R.detach(), is_correct_R


def loss_sums(
    hidden_BQH: Tensor, head_VH: Tensor, supervised: Supervised, *, chunk_slots: int, run_chunk: ChunkFn = loss_chunk
) -> LossSums:
    """Return the sums of the loss over the supervised slots; `weighted_ce` carries the gradient to `hidden_BQH`.

    Chunks have one fixed shape and only those that hold a supervised slot are run.
    """
    num_rows, num_slots = supervised.num_rows, supervised.rows_L.numel()
    rows_LH = hidden_BQH.flatten(0, 1).index_select(0, supervised.rows_L)
    if num_slots % chunk_slots:
        raise ValueError(f"{num_slots} gathered slots are no multiple of chunk_slots {chunk_slots}")
    num_chunks = -(-num_rows // chunk_slots)
    weighted_ce, ce_L, is_correct_L = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        rows_LH, head_VH, supervised.label_L, supervised.weight_L, run_chunk, chunk_slots, num_chunks
    )
    return LossSums(weighted_ce, supervised.total_weight, ce_L[:num_rows], is_correct_L[:num_rows])


class _ChunkedLoss(torch.autograd.Function):
    """Runs forward and backward of every chunk in its forward, and keeps the gradient of the rows alone."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        rows_LH: Tensor,
        head_VH: Tensor,
        label_L: Tensor,
        weight_L: Tensor,
        run_chunk: ChunkFn,
        chunk_slots: int,
        num_chunks: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float32, device=rows_LH.device)
        ce_L = torch.zeros(label_L.shape, dtype=torch.float32, device=rows_LH.device)
        is_correct_L = torch.zeros(label_L.shape, dtype=torch.bool, device=rows_LH.device)
        gradient_LH = torch.zeros_like(rows_LH)
        for start in range(0, num_chunks * chunk_slots, chunk_slots):
            part = slice(start, start + chunk_slots)
            # A copy, not a view: a view at another offset would be another entry of the compiled function.
            rows_RH = rows_LH[part].detach().clone().requires_grad_()
            with torch.enable_grad():
                chunk_sum, ce_R, is_correct_R = run_chunk(rows_RH, head_VH, label_L[part], weight_L[part])
            (gradient_LH[part],) = torch.autograd.grad(chunk_sum, rows_RH)
            total += chunk_sum.detach()
            ce_L[part], is_correct_L[part] = ce_R, is_correct_R
        ctx.save_for_backward(gradient_LH)
        ctx.mark_non_differentiable(ce_L, is_correct_L)
        return total, ce_L, is_correct_L

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient_LH,) = ctx.saved_tensors
        return gradient_LH * gradients[0].to(gradient_LH.dtype), None, None, None, None, None, None


def accept_lengths(is_correct_BNs: Tensor, is_supervised_BNs: Tensor, *, stop_at_gap: bool) -> Tensor:
    """Return int64 [B, N]: slots right in a row from slot 1 on, the bonus token not counted.

    Slots that are not supervised are stepped over, or end the count where `stop_at_gap`.
    """
    counts = (is_correct_BNs & is_supervised_BNs)[..., 1:]
    goes_on = counts if stop_at_gap else (is_correct_BNs | ~is_supervised_BNs)[..., 1:]
    return (goes_on.long().cumprod(dim=-1) * counts).sum(dim=-1)
