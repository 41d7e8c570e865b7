"""Who may attend to whom: one rule, evaluated densely (a bool tensor) or by flex attention (a BlockMask).

Legend: B rows, S context positions, N blocks a row, Q = N * block_size draft slots, P = S + Q key positions.
Query q is slot q % block_size of block q // block_size; keys are the S context positions, then the slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from trainer.model_config import DrafterConfig, LayerKind

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
DenseBuilder = Callable[[Tensor, Tensor, Tensor], Tensor]
FlexBuilder = Callable[[Tensor, Tensor, Tensor], BlockMask]


@dataclass(frozen=True)
class Reach:
    """What a kind of layer sees: its context window (None: all of it) and whether a block is causal inside."""

    block_size: int
    window: int | None = None
    is_causal: bool = False

    @classmethod
    def of(cls, config: DrafterConfig, kind: LayerKind) -> Reach:
        """Return the reach of one kind of layer."""
        return cls(block_size=config.block_size, window=config.window_of(kind), is_causal=config.is_causal(kind))


def mask_rule(reach: Reach, anchor_BN: Tensor, valid_BN: Tensor, document_BS: Tensor) -> MaskRule:
    """Return the rule `(b, h, q, kv) -> may attend`; its arguments broadcast, so it serves both forms.

    A block sees the context strictly before its anchor, in the anchor's document, within the window, and its own slots.
    A block that is not valid sees its own slots only: no row is ever empty, so softmax never makes NaN of it.
    Indices may lie beyond the end, since flex pads both sides to whole tiles.
    """
    block_size, window, is_causal = reach.block_size, reach.window, reach.is_causal
    (num_positions, num_blocks) = (document_BS.shape[1], anchor_BN.shape[1])

    def may_attend(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        block = (q // block_size).clamp(max=num_blocks - 1)
        anchor, valid = anchor_BN[b, block], valid_BN[b, block]
        context = kv.clamp(max=num_positions - 1)
        sees_context = (kv < num_positions) & valid & (kv < anchor)
        sees_context = sees_context & (document_BS[b, context] == document_BS[b, anchor])
        if window is not None:
            sees_context = sees_context & (anchor + q % block_size - kv < window)
        slot = kv - num_positions
        sees_slot = (slot >= 0) & (slot // block_size == q // block_size)
        if is_causal:
            sees_slot = sees_slot & (slot <= q)
        return sees_context | sees_slot

    return may_attend


def dense_builder(reach: Reach) -> DenseBuilder:
    """Return a function of (anchor_BN, valid_BN, document_BS) that builds the mask bool [B, 1, Q, P]."""

    def build_dense_mask(anchor_BN: Tensor, valid_BN: Tensor, document_BS: Tensor) -> Tensor:
        rule = mask_rule(reach, anchor_BN, valid_BN, document_BS)
        num_rows, num_positions = document_BS.shape
        num_slots, device = anchor_BN.shape[1] * reach.block_size, anchor_BN.device
        b = torch.arange(num_rows, device=device)[:, None, None, None]
        q = torch.arange(num_slots, device=device)[:, None]
        kv = torch.arange(num_positions + num_slots, device=device)
        return rule(b, torch.zeros_like(b), q, kv)

    return build_dense_mask


def flex_builder(reach: Reach) -> FlexBuilder:
    """Return a function of (anchor_BN, valid_BN, document_BS) that builds the BlockMask of the same rule."""

    def build_flex_mask(anchor_BN: Tensor, valid_BN: Tensor, document_BS: Tensor) -> BlockMask:
        num_rows, num_positions = document_BS.shape
        num_slots = anchor_BN.shape[1] * reach.block_size
        return create_block_mask(
            mask_rule(reach, anchor_BN, valid_BN, document_BS),
            B=num_rows,
            H=None,
            Q_LEN=num_slots,
            KV_LEN=num_positions + num_slots,
            device=anchor_BN.device,
        )

    return build_flex_mask
