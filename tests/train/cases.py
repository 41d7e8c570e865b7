"""Small drafters and packed batches that the trainer's tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.train.naive import NaiveBatch
from trainer.anchors import Anchors
from trainer.batch import Batch
from trainer.model_config import DrafterConfig


def drafter_config(**changes: Any) -> DrafterConfig:
    """A drafter of two layers, small enough for loops in Python."""
    values: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 30,
        "num_target_layers": 6,
        "block_size": 4,
        "mask_token_id": 29,
        "target_layer_ids": (1, 3),
        "layer_types": ("full_attention", "full_attention"),
    }
    return DrafterConfig(**(values | changes))


def sliding_config(*, is_causal: bool, window: int = 6) -> DrafterConfig:
    """The same with a sliding layer first and a full one after it."""
    kinds = ("sliding_attention", "full_attention")
    return drafter_config(layer_types=kinds, sliding_window=window, sliding_is_causal=is_causal)


def packed_batch(seed: int = 0) -> Batch:
    """Two rows of 24 tokens: three documents and padding, and one document whose mask has holes."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 29, (2, 24), generator=generator)
    documents = torch.tensor([[0] * 9 + [1] * 7 + [2] * 5 + [-1] * 3, [3] * 24])
    mask = (torch.rand(2, 24, generator=generator) < 0.8).long() * (documents >= 0)
    mask[:, :2] = 0
    return Batch(ids, mask, documents)


def packed_anchors() -> Anchors:
    """Anchors at a document's first token, before its end, at the row's end, and two slots that mean nothing."""
    position = torch.tensor([[2, 7, 9, 14, 18, 99], [0, 5, 11, 17, 23, -7]])
    is_valid = torch.tensor([[True] * 5 + [False], [True] * 5 + [False]])
    return Anchors(position, is_valid)


def as_naive(batch: Batch, anchors: Anchors) -> NaiveBatch:
    """The same batch as numpy arrays."""
    tensors = (*batch.tensors().values(), anchors.position_BN, anchors.is_valid_BN)
    return NaiveBatch(*(tensor.numpy() for tensor in tensors))


def double_weights(state: dict[str, Tensor]) -> dict[str, Any]:
    """A state dict as float64 arrays."""
    return {name: value.double().numpy() for name, value in state.items()}
