"""A second, slow drafter in plain Python loops over numpy float64, written from the formulas and from nothing else.

It shares no code with the trainer: what it agrees on, it agrees on by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NaiveBatch:
    """One batch as plain arrays."""

    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.int64]
    document_ids: NDArray[np.int64]
    anchors: NDArray[np.int64]
    anchor_valid: NDArray[np.bool_]


def may_attend(
    batch: NaiveBatch, row: int, block: int, slot: int, key: int, *, block_size: int, window: int | None, causal: bool
) -> bool:
    """Whether slot `slot` of block `block` sees key `key`; for valid blocks."""
    num_tokens = batch.input_ids.shape[1]
    anchor = int(batch.anchors[row, block])
    if key < num_tokens:
        if key >= anchor:
            return False
        if batch.document_ids[row, key] != batch.document_ids[row, anchor]:
            return False
        return window is None or anchor + slot - key < window
    key_block, key_slot = divmod(key - num_tokens, block_size)
    if key_block != block:
        return False
    return key_slot <= slot if causal else True


def label(batch: NaiveBatch, row: int, block: int, slot: int) -> int:
    """The token a slot must predict, -100 where it is not supervised."""
    if slot == 0 or not batch.anchor_valid[row, block]:
        return -100
    anchor = int(batch.anchors[row, block])
    position = anchor + slot
    if position >= batch.input_ids.shape[1] or not batch.loss_mask[row, position]:
        return -100
    if batch.document_ids[row, position] != batch.document_ids[row, anchor]:
        return -100
    return int(batch.input_ids[row, position])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight of one vector."""
    return x / math.sqrt(float(np.mean(x * x)) + eps) * weight


def rope(x: Array, position: int, theta: float) -> Array:
    """Rotate the pairs (j, j + half) of one head."""
    half = len(x) // 2
    out = np.empty_like(x)
    for j in range(half):
        angle = position * theta ** (-2.0 * j / len(x))
        out[j] = x[j] * math.cos(angle) - x[j + half] * math.sin(angle)
        out[j + half] = x[j + half] * math.cos(angle) + x[j] * math.sin(angle)
    return out


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


@dataclass(frozen=True)
class NaiveDrafter:
    """The weights by name and the few numbers of the config that the formulas need."""

    weights: Mapping[str, Array]
    config: Any

    def hidden(self, batch: NaiveBatch, embedding: Array, target_hidden: Array) -> Array:
        """The states [B, N * bs, H] after the final norm; rows of invalid blocks are zero."""
        num_rows, num_blocks = batch.anchors.shape
        size = self.config.block_size
        out = np.zeros((num_rows, num_blocks * size, self.config.hidden_size))
        for row in range(num_rows):
            context = np.stack([self._context(vector) for vector in target_hidden[row]])
            for block in range(num_blocks):
                if batch.anchor_valid[row, block]:
                    out[row, block * size : (block + 1) * size] = self._block(batch, embedding, context, row, block)
        return out

    def _context(self, vector: Array) -> Array:
        return rms_norm(
            self.weights["fc.weight"] @ vector, self.weights["hidden_norm.weight"], self.config.rms_norm_eps
        )

    def _block(self, batch: NaiveBatch, embedding: Array, context: Array, row: int, block: int) -> Array:
        size, eps = self.config.block_size, self.config.rms_norm_eps
        anchor = int(batch.anchors[row, block])
        tokens = [int(batch.input_ids[row, anchor])] + [self.config.mask_token_id] * (size - 1)
        x = embedding[tokens].copy()
        for index, kind in enumerate(self.config.layer_types):
            p = f"layers.{index}."
            h = np.stack([rms_norm(v, self.weights[p + "input_layernorm.weight"], eps) for v in x])
            x = x + self._attention(p, kind, batch, h, context, row, block)
            for slot in range(size):
                y = rms_norm(x[slot], self.weights[p + "post_attention_layernorm.weight"], eps)
                gate, up = self.weights[p + "mlp.gate_proj.weight"] @ y, self.weights[p + "mlp.up_proj.weight"] @ y
                x[slot] = x[slot] + self.weights[p + "mlp.down_proj.weight"] @ (silu(gate) * up)
        return np.stack([rms_norm(v, self.weights["norm.weight"], eps) for v in x])

    def _attention(self, p: str, kind: str, batch: NaiveBatch, h: Array, context: Array, row: int, block: int) -> Array:
        c, size, num_tokens = self.config, self.config.block_size, len(context)
        slides = kind == "sliding_attention"
        anchor = int(batch.anchors[row, block])
        sources = [(key, key, context[key]) for key in range(num_tokens)]
        sources += [(num_tokens + block * size + slot, anchor + slot, h[slot]) for slot in range(size)]
        keys, values = {}, {}
        for key, position, vector in sources:
            keys[key] = self._heads(p + "self_attn.k_proj", p + "self_attn.k_norm", vector, position)
            values[key] = (self.weights[p + "self_attn.v_proj.weight"] @ vector).reshape(-1, c.head_dim)
        out = np.empty_like(h)
        group = c.num_attention_heads // c.num_key_value_heads
        for slot in range(size):
            query = self._heads(p + "self_attn.q_proj", p + "self_attn.q_norm", h[slot], anchor + slot)
            seen = [
                key
                for key in keys
                if may_attend(
                    batch,
                    row,
                    block,
                    slot,
                    key,
                    block_size=size,
                    window=c.sliding_window if slides else None,
                    causal=slides and c.sliding_is_causal,
                )
            ]
            mixed = []
            for head in range(c.num_attention_heads):
                scores = np.array([query[head] @ keys[key][head // group] for key in seen]) / math.sqrt(c.head_dim)
                share = np.exp(scores - scores.max())
                share /= share.sum()
                mixed.append(sum(w * values[key][head // group] for w, key in zip(share, seen, strict=True)))
            out[slot] = self.weights[p + "self_attn.o_proj.weight"] @ np.concatenate(mixed)
        return out

    def _heads(self, projection: str, norm: str, vector: Array, position: int) -> Array:
        heads = (self.weights[projection + ".weight"] @ vector).reshape(-1, self.config.head_dim)
        weight, c = self.weights[norm + ".weight"], self.config
        return np.stack([rope(rms_norm(head, weight, c.rms_norm_eps), position, c.rope_theta) for head in heads])
