"""Attention of draft slots over context and blocks, in two forms: `dense` (any device) and `flex` (CUDA).

Which form runs is decided by the mask's type, so that one layer serves both. It builds no masks (see trainer.mask).
Legend: B rows, h query heads, g key/value heads, Q draft slots, P = S + Q keys, D head_dim.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

AttentionForm = Literal["dense", "flex"]
Mask = Tensor | BlockMask | None


def attend(query_BhQD: Tensor, key_BgPD: Tensor, value_BgPD: Tensor, mask: Mask) -> Tensor:
    """Return softmax(q k^T / sqrt(D), masked) v as [B, h, Q, D]; `mask` None means that all keys are seen."""
    is_grouped = query_BhQD.shape[1] != key_BgPD.shape[1]
    if isinstance(mask, BlockMask):
        out = flex_attention(query_BhQD, key_BgPD, value_BgPD, block_mask=mask, enable_gqa=is_grouped)
        assert isinstance(out, Tensor)
        return out
    return F.scaled_dot_product_attention(query_BhQD, key_BgPD, value_BgPD, attn_mask=mask, enable_gqa=is_grouped)


def attention_form(device: torch.device) -> AttentionForm:
    """Return the form that trains on `device`: flex has no backward on the CPU."""
    return "flex" if device.type == "cuda" else "dense"
