"""The sizes of a verifier that a drafter must fit: plain numbers, known without loading any weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifierShape:
    """Sizes of a frozen verifier, as its Hugging Face config names them."""

    hidden_size: int
    vocab_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
