"""Turns a batch and its anchors into what the drafter reads (ids, positions) and must predict (labels, weights).

Everything here is made on the host, where batch and anchors are at hand, and has fixed shapes.
Legend: B rows, S tokens, N blocks, bs slots a block, Q = N * bs, P = S + Q, L gathered slots (a multiple of the chunk).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from trainer.anchors import Anchors
from trainer.batch import Batch

IGNORED = -100


@dataclass(frozen=True)
class Blocks:
    """The draft slots of a batch: input ids [B, Q], key positions [B, P], labels [B, N, bs], weights [B, N, bs]."""

    ids_BQ: Tensor
    positions_BP: Tensor
    label_BNs: Tensor
    weight_BNs: Tensor


@dataclass(frozen=True)
class Supervised:
    """The supervised slots of all blocks in slot order, padded to the fixed length L with weight 0 and label 0.

    `rows_L` index the B * Q slots; only the first `num_rows` mean something. `total_weight` is the loss's denominator,
    known on the host before anything runs.
    """

    rows_L: Tensor
    label_L: Tensor
    weight_L: Tensor
    num_rows: int
    total_weight: float

    def to(self, device: torch.device | str) -> Supervised:
        """Return the same on `device`."""
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in ("rows_L", "label_L", "weight_L")}
        return Supervised(**moved, num_rows=self.num_rows, total_weight=self.total_weight)


def make_blocks(batch: Batch, anchors: Anchors, *, block_size: int, mask_token_id: int, gamma: float) -> Blocks:
    """Return the blocks that start at `anchors`: slot 0 is the clean anchor token, the others are masks to fill."""
    anchors = anchors.cleaned()
    anchor_BN = anchors.position_BN
    label_BNs = _labels(batch, anchors, block_size)
    return Blocks(
        ids_BQ=_input_ids(batch.input_ids_BS, anchor_BN, block_size, mask_token_id),
        positions_BP=_positions(anchor_BN, batch.input_ids_BS.shape[1], block_size),
        label_BNs=label_BNs,
        weight_BNs=(label_BNs != IGNORED) * slot_weights(block_size, gamma),
    )


def slot_weights(block_size: int, gamma: float) -> Tensor:
    """Return exp(-(i - 1) / gamma) for slots 0..block_size-1 (slot 0 is never supervised)."""
    return torch.exp(-(torch.arange(block_size, dtype=torch.float32) - 1) / gamma)


def gather_supervised(blocks: Blocks, *, multiple_of: int) -> Supervised:
    """Return the supervised slots, padded to a length that depends on the shapes only."""
    label, weight = blocks.label_BNs.flatten(), blocks.weight_BNs.flatten()
    num_blocks, block_size = blocks.label_BNs.shape[0] * blocks.label_BNs.shape[1], blocks.label_BNs.shape[2]
    capacity = -(-num_blocks * (block_size - 1) // multiple_of) * multiple_of
    rows = (label != IGNORED).nonzero().flatten()
    pad = (0, capacity - rows.numel())
    return Supervised(
        rows_L=torch.nn.functional.pad(rows, pad),
        label_L=torch.nn.functional.pad(label[rows], pad),
        weight_L=torch.nn.functional.pad(weight[rows], pad),
        num_rows=rows.numel(),
        total_weight=float(weight.sum()),
    )


def to_device(blocks: Blocks, device: torch.device | str) -> Blocks:
    """Return the blocks on `device`."""
    return Blocks(*(getattr(blocks, field.name).to(device, non_blocking=True) for field in fields(blocks)))


def _input_ids(input_ids_BS: Tensor, anchor_BN: Tensor, block_size: int, mask_token_id: int) -> Tensor:
    ids_BNs = torch.full((*anchor_BN.shape, block_size), mask_token_id, dtype=torch.int64)
    ids_BNs[..., 0] = input_ids_BS.gather(1, anchor_BN)
    return ids_BNs.flatten(1)


def _positions(anchor_BN: Tensor, num_positions: int, block_size: int) -> Tensor:
    """Return the key positions: a context position is its index in the row, slot i of a block is anchor + i."""
    context_BS = torch.arange(num_positions).expand(anchor_BN.shape[0], -1)
    slots_BQ = (anchor_BN[..., None] + torch.arange(block_size)).flatten(1)
    return torch.cat((context_BS, slots_BQ), dim=1)


def _labels(batch: Batch, anchors: Anchors, block_size: int) -> Tensor:
    """Return labels [B, N, bs]: the token at the slot's own position where it is supervised, else IGNORED."""
    offset = torch.arange(block_size)
    position_BNs = anchors.position_BN[..., None] + offset
    num_positions = batch.input_ids_BS.shape[1]
    inside = position_BNs.clamp(max=num_positions - 1).flatten(1)

    def at(values_BS: Tensor) -> Tensor:
        return values_BS.gather(1, inside).view_as(position_BNs)

    is_supervised = anchors.is_valid_BN[..., None] & (offset > 0) & (position_BNs < num_positions)
    is_supervised &= at(batch.loss_mask_BS).bool()
    is_supervised &= at(batch.document_ids_BS) == batch.document_ids_BS.gather(1, anchors.position_BN)[..., None]
    return torch.where(is_supervised, at(batch.input_ids_BS), IGNORED)
