"""One forward pass from a batch to loss sums: the path that training, prewarming and the golden check share.

Legend: B rows, S context positions, Q draft slots, H hidden, C captured hidden states, V vocabulary, L gathered slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.anchors import Anchors
from trainer.attention import AttentionForm, Mask
from trainer.batch import Batch
from trainer.blocks import Blocks, Supervised, gather_supervised, make_blocks, to_device
from trainer.loss import ChunkFn, LossSums, loss_chunk, loss_sums
from trainer.mask import Reach, dense_builder, flex_builder
from trainer.model import Drafter, LayerFn, run_layer
from trainer.model_config import DrafterConfig, LayerKind

MaskFn = Callable[[Tensor, Tensor, Tensor], Mask]
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Functions:
    """Every function of a step that is compiled: a mask and a layer for each kind of layer, and the loss's chunk."""

    masks: Mapping[LayerKind, MaskFn]
    layers: Mapping[LayerKind, LayerFn]
    chunk: ChunkFn


def step_functions(
    config: DrafterConfig, form: AttentionForm, *, wrap: Wrap = lambda _, function: function
) -> Functions:
    """Return the functions of a step, each given its name and passed through `wrap` (which compiles, or not)."""
    build = dense_builder if form == "dense" else flex_builder
    return Functions(
        masks={kind: wrap(f"mask_{kind}", build(Reach.of(config, kind))) for kind in config.kinds},
        layers={kind: wrap(f"layer_{kind}", run_layer) for kind in config.kinds},
        chunk=wrap("loss_chunk", loss_chunk),
    )


@dataclass(frozen=True)
class Frozen:
    """What the drafter borrows from the verifier and never changes: embedding and vocabulary head, both [V, H]."""

    embed_VH: Tensor
    head_VH: Tensor


@dataclass(frozen=True)
class StepInputs:
    """A batch with its anchors, blocks and supervised slots, made on the host in fixed shapes."""

    batch: Batch
    anchors: Anchors
    blocks: Blocks
    supervised: Supervised

    @classmethod
    def make(
        cls, batch: Batch, anchors: Anchors, config: DrafterConfig, *, gamma: float, chunk_slots: int
    ) -> StepInputs:
        """Return the inputs of one step from a batch and its anchors, all on the host."""
        anchors = anchors.cleaned()
        blocks = make_blocks(
            batch, anchors, block_size=config.block_size, mask_token_id=config.mask_token_id, gamma=gamma
        )
        return cls(batch, anchors, blocks, gather_supervised(blocks, multiple_of=chunk_slots))

    def to(self, device: torch.device | str) -> StepInputs:
        """Return the inputs on `device`."""
        return StepInputs(
            self.batch.to(device), self.anchors.to(device), to_device(self.blocks, device), self.supervised.to(device)
        )


def build_masks(inputs: StepInputs, functions: Functions) -> dict[LayerKind, Mask]:
    """Return the attention mask of every kind of layer."""
    anchors, document_BS = inputs.anchors, inputs.batch.document_ids_BS
    return {
        kind: build(anchors.position_BN, anchors.is_valid_BN, document_BS) for kind, build in functions.masks.items()
    }


def draft_hidden(
    drafter: Drafter, functions: Functions, frozen: Frozen, inputs: StepInputs, target_hidden_BSC: Tensor
) -> Tensor:
    """Return the drafter's states [B, Q, H] for all blocks."""
    noise_BQH = F.embedding(inputs.blocks.ids_BQ, frozen.embed_VH)
    masks = build_masks(inputs, functions)
    hidden_BQH: Tensor = drafter(noise_BQH, target_hidden_BSC, inputs.blocks.positions_BP, masks, run=functions.layers)
    return hidden_BQH


def step_loss(
    drafter: Drafter,
    functions: Functions,
    frozen: Frozen,
    inputs: StepInputs,
    target_hidden_BSC: Tensor,
    *,
    chunk_slots: int,
) -> LossSums:
    """Return the loss sums of one batch; the caller divides by the weight of all ranks and runs the backward."""
    hidden_BQH = draft_hidden(drafter, functions, frozen, inputs, target_hidden_BSC)
    return loss_sums(hidden_BQH, frozen.head_VH, inputs.supervised, chunk_slots=chunk_slots, run_chunk=functions.chunk)


def spread_slots(values_L: Tensor, inputs: StepInputs) -> Tensor:
    """Return values of the supervised slots at their places [B, N, bs], zero elsewhere."""
    label_BNs, num_rows = inputs.blocks.label_BNs, inputs.supervised.num_rows
    flat = torch.zeros(label_BNs.numel(), dtype=values_L.dtype, device=values_L.device)
    return flat.index_copy(0, inputs.supervised.rows_L[:num_rows], values_L).view_as(label_BNs)
