"""The DFlash drafter: a few non-causal decoder layers that read a verifier's hidden states and fill blocks of tokens.

Parameters are float32 masters and are cast to the dtype of what flows through, so that bf16 compute never rounds them.
Legend: B rows, S context positions, N blocks a row, Q = N * block_size draft slots, P = S + Q key positions,
H hidden, C = K * H captured hidden states, h query heads, g key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.attention import Mask, attend
from trainer.errors import ConfigError
from trainer.model_config import DrafterConfig, LayerKind

Rope = tuple[Tensor, Tensor]
LayerFn = Callable[["DraftLayer", Tensor, Tensor, Rope, Mask], Tensor]


class Linear(nn.Linear):
    """A linear map whose float32 weight is cast to the dtype of its input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return input @ weight^T (+ bias) in the input's dtype."""
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x in its own dtype."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


def rotary(positions_BP: Tensor, *, head_dim: int, theta: float) -> Rope:
    """Return cos and sin [B, 1, P, D] of the phases, in float32.

    Frequencies are computed here and kept in no buffer: a buffer is rounded by `module.to(bfloat16)`, and then phases
    drift away from those of the serving engines.
    """
    exponent = torch.arange(0, head_dim, 2, device=positions_BP.device, dtype=torch.float32) / head_dim
    phase = positions_BP.float()[:, None, :, None] * (1.0 / theta**exponent)
    phase = torch.cat((phase, phase), dim=-1)
    return phase.cos(), phase.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary phases to x [B, heads, P, D]: halves are rotated, in float32."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)


class Attention(nn.Module):
    """Draft slots attend to context features and to their own block through the same key and value projections."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, kv_width = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=config.attention_bias)
        self.o_proj = Linear(width, config.hidden_size, bias=config.attention_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x_BQH: Tensor, context_BSH: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """Return the attention output [B, Q, H]; queries take the last Q rows of `rope`."""
        cos, sin = rope
        num_slots = x_BQH.shape[1]
        rows_BPH = torch.cat((context_BSH, x_BQH), dim=1)
        query_BhQD = self.q_norm(self._heads(self.q_proj(x_BQH))).transpose(1, 2)
        key_BgPD = self.k_norm(self._heads(self.k_proj(rows_BPH))).transpose(1, 2)
        value_BgPD = self._heads(self.v_proj(rows_BPH)).transpose(1, 2)
        query_BhQD = rotate(query_BhQD, cos[:, :, -num_slots:], sin[:, :, -num_slots:])
        out_BhQD = attend(query_BhQD, rotate(key_BgPD, cos, sin), value_BgPD, mask)
        out: Tensor = self.o_proj(out_BhQD.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed x, same shape."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """One pre-norm layer. It holds no number of its own layer, so that one compiled copy serves all of its kind."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x_BQH: Tensor, context_BSH: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """Return the draft states after this layer; the context passes unchanged and without the input norm."""
        x_BQH = x_BQH + self.self_attn(self.input_layernorm(x_BQH), context_BSH, rope, mask)
        out: Tensor = x_BQH + self.mlp(self.post_attention_layernorm(x_BQH))
        return out


def run_layer(layer: DraftLayer, x_BQH: Tensor, context_BSH: Tensor, rope: Rope, mask: Mask) -> Tensor:
    """Run one layer; the function that is compiled, once a kind of layer."""
    out: Tensor = layer(x_BQH, context_BSH, rope, mask)
    return out


class Drafter(nn.Module):
    """The trained part of a DFlash drafter; embedding and vocabulary head stay the verifier's, frozen and apart."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = Linear(config.context_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the linear weights anew from torch's global generator and set the norms to one."""
        for module in self.modules():
            if isinstance(module, Linear):
                nn.init.normal_(module.weight, std=self.config.initializer_range)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm):
                nn.init.ones_(module.weight)

    def load_weights(self, weights: Mapping[str, Tensor], *, place: str) -> None:
        """Take over weights that were read at `place`; raises ConfigError where they are not those of this drafter."""
        try:
            self.load_state_dict(weights)
        except RuntimeError as error:
            raise ConfigError(f"{place} does not fit config.json: {error}") from error

    def context_features(self, target_hidden_BSC: Tensor) -> Tensor:
        """Return hidden_norm(fc(.)) [B, S, H]: position by position, so a decoder may cache and append it."""
        features: Tensor = self.hidden_norm(self.fc(target_hidden_BSC))
        return features

    def forward(
        self,
        noise_embedding_BQH: Tensor,
        target_hidden_BSC: Tensor,
        positions_BP: Tensor,
        masks: Mapping[LayerKind, Mask],
        *,
        run: Mapping[LayerKind, LayerFn] | None = None,
    ) -> Tensor:
        """Return the states [B, Q, H] after the final norm; `run` gives each kind of layer its (compiled) function."""
        rope = rotary(positions_BP, head_dim=self.config.head_dim, theta=self.config.rope_theta)
        context_BSH = self.context_features(target_hidden_BSC.to(noise_embedding_BQH.dtype))
        x_BQH = noise_embedding_BQH
        if torch.is_grad_enabled():
            # The first layer must look like the others to the compiler: an input without gradient is a second entry.
            x_BQH = x_BQH.detach().requires_grad_()
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            assert isinstance(layer, DraftLayer)
            run_kind = run_layer if run is None else run[kind]
            x_BQH = run_kind(layer, x_BQH, context_BSH, rope, masks[kind])
        out: Tensor = self.norm(x_BQH)
        return out

    @torch.no_grad()
    def draft_block(
        self,
        context_BSH: Tensor,
        block_embedding_BQH: Tensor,
        positions_BP: Tensor,
        context_mask_BS: Tensor | None = None,
    ) -> Tensor:
        """Return the states [B, Q, H] of one block (Q = block size) given context features; eager, for decoding.

        Only what stands before the block may be seen: all of `context_BSH`, or where `context_mask_BS` is True, so that
        rows of different lengths decode together. Positions are the context's, then the slots'.
        """
        rope = rotary(positions_BP, head_dim=self.config.head_dim, theta=self.config.rope_theta)
        masks = {
            kind: self._block_mask(kind, positions_BP, context_BSH.shape[1], context_mask_BS)
            for kind in self.config.kinds
        }
        x_BQH = block_embedding_BQH
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x_BQH = layer(x_BQH, context_BSH, rope, masks[kind])
        out: Tensor = self.norm(x_BQH)
        return out

    def _block_mask(
        self, kind: LayerKind, positions_BP: Tensor, num_context: int, context_mask_BS: Tensor | None
    ) -> Tensor | None:
        """Return the mask [B, 1, Q, P] of a lone block, None where every key is seen."""
        window, is_causal = self.config.window_of(kind), self.config.is_causal(kind)
        if window is None and not is_causal and context_mask_BS is None:
            return None
        query_BQ1, key_B1P = positions_BP[:, num_context:, None], positions_BP[:, None, :]
        sees_BQP = torch.ones_like(query_BQ1 >= key_B1P)
        if window is not None:
            sees_BQP[..., :num_context] &= (query_BQ1 - key_B1P < window)[..., :num_context]
        if context_mask_BS is not None:
            sees_BQP[..., :num_context] &= context_mask_BS[:, None, :]
        if is_causal:
            sees_BQP[..., num_context:] &= (key_B1P <= query_BQ1)[..., num_context:]
        return sees_BQP[:, None]
