"""Draws the anchors of a batch: where blocks start. The number of slots is fixed; what a row cannot fill is flagged.

Drawn on the host, before the batch travels, so that nothing waits for a GPU.
Legend: B rows, S tokens, N anchor slots a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.batch import Batch


@dataclass(frozen=True)
class Anchors:
    """Positions of blocks in ascending order, valid ones first; the position of an invalid slot means nothing."""

    position_BN: Tensor
    is_valid_BN: Tensor

    def cleaned(self) -> Anchors:
        """Return the anchors with the positions of invalid slots set to 0, safe to index with."""
        return Anchors(self.position_BN.where(self.is_valid_BN, 0), self.is_valid_BN)

    def to(self, device: torch.device | str) -> Anchors:
        """Return the anchors on `device`."""
        return Anchors(self.position_BN.to(device, non_blocking=True), self.is_valid_BN.to(device, non_blocking=True))


def candidates(batch: Batch) -> Tensor:
    """Return bool [B, S]: supervised tokens whose next token is supervised and of the same document."""
    supervised = batch.loss_mask_BS.bool() & (batch.document_ids_BS >= 0)
    is_candidate = torch.zeros_like(supervised)
    same_document = batch.document_ids_BS[:, 1:] == batch.document_ids_BS[:, :-1]
    is_candidate[:, :-1] = supervised[:, :-1] & supervised[:, 1:] & same_document
    return is_candidate


def draw_anchors(batch: Batch, *, per_row: int, seed: int, step: int, rank: int = 0) -> Anchors:
    """Return `per_row` anchors a row, a pure function of the batch and (seed, step, rank), so that resuming is exact.

    Documents of a row take turns: each gives one random candidate a round until the slots are full or it has none left.
    A short document so gets as many as a long one, up to all it has. No position is drawn twice.
    """
    is_candidate = candidates(batch).cpu()
    generator = torch.Generator().manual_seed(fold_in(seed, step, rank))
    shuffle_key = torch.rand(is_candidate.shape, dtype=torch.float64, generator=generator)
    turn = _turn_within_document(batch.document_ids_BS.cpu(), is_candidate, shuffle_key)
    tie_break = torch.rand(is_candidate.shape, dtype=torch.float64, generator=generator)
    num_positions = is_candidate.shape[1]
    priority = torch.where(is_candidate, turn + tie_break, torch.inf)
    chosen = torch.zeros_like(is_candidate).scatter_(1, priority.argsort(dim=1)[:, :per_row], True) & is_candidate
    position = torch.where(chosen, torch.arange(num_positions), num_positions).sort(dim=1).values[:, :per_row]
    if num_positions < per_row:
        position = torch.nn.functional.pad(position, (0, per_row - num_positions), value=num_positions)
    is_valid = position < num_positions
    return Anchors(position, is_valid).cleaned()


def _turn_within_document(document_BS: Tensor, is_candidate: Tensor, shuffle_key: Tensor) -> Tensor:
    """Return float64 [B, S]: the round, counted from 0, in which a candidate is its document's choice."""
    last = document_BS.max() + 1
    key = torch.where(is_candidate, document_BS, last) + shuffle_key  # whole part: document; rest: order within it
    order = key.argsort(dim=1)
    group = torch.where(is_candidate, document_BS, last).gather(1, order)
    index = torch.arange(group.shape[1]).expand_as(group)
    starts_group = torch.ones_like(is_candidate)
    starts_group[:, 1:] = group[:, 1:] != group[:, :-1]
    first = torch.where(starts_group, index, 0).cummax(dim=1).values
    return torch.zeros_like(key).scatter_(1, order, (index - first).to(key.dtype))


def fold_in(seed: int, *numbers: int) -> int:
    """Return a 63-bit seed made of several numbers (splitmix64), so that near ones give unrelated streams."""
    state = 0
    for number in (seed, *numbers):
        state = (state + 0x9E3779B97F4A7C15 * (number + 1)) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state >> 1


_WORD = (1 << 64) - 1
