"""The drafter's sizes, read and written in the Hugging Face form that vLLM and SGLang load. It builds no modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.shape import VerifierShape

LayerKind = Literal["full_attention", "sliding_attention"]
LAYER_KINDS: tuple[LayerKind, ...] = ("full_attention", "sliding_attention")


def spread_target_layers(num_target_layers: int, num_ids: int) -> tuple[int, ...]:
    """Return `num_ids` decoder layer indices spread over a verifier, the first and the last few left out.

    >>> spread_target_layers(36, 5)
    (1, 9, 17, 25, 33)
    """
    if num_ids == 1:
        return (num_target_layers // 2,)
    first, last = 1, num_target_layers - 3
    if last - first < num_ids - 1:  # a verifier too shallow for that rule: take what it has, the last layer left out
        first, last = 0, num_target_layers - 2
    step = (last - first) / (num_ids - 1)
    return tuple(round(first + index * step) for index in range(num_ids))


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Sizes of one drafter; raises ValueError where they do not fit together."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    layer_types: tuple[LayerKind, ...]
    sliding_window: int | None = None
    sliding_is_causal: bool = True
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e4
    max_position_embeddings: int = 40960
    attention_bias: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> list[str]:
        found = []
        if self.num_attention_heads % self.num_key_value_heads:
            found.append("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            found.append("head_dim must be even, since RoPE rotates pairs")
        if self.block_size < 2:
            found.append("block_size must be at least 2: slot 0 is the anchor and predicts nothing")
        if not 0 <= self.mask_token_id < self.vocab_size:
            found.append(f"mask_token_id {self.mask_token_id} is outside the vocabulary of {self.vocab_size}")
        if len(self.layer_types) != self.num_hidden_layers:
            found.append(f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers")
        if not set(self.layer_types) <= set(LAYER_KINDS):
            found.append(f"layer_types must be of {', '.join(LAYER_KINDS)}")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            found.append("sliding_window must be set where layer_types has sliding_attention")
        if not self.target_layer_ids or not all(0 <= i < self.num_target_layers for i in self.target_layer_ids):
            found.append(f"target_layer_ids must be within 0..{self.num_target_layers - 1} and not empty")
        if len(set(self.target_layer_ids)) != len(self.target_layer_ids):
            found.append("target_layer_ids must not repeat a layer")
        return found

    @property
    def context_size(self) -> int:
        """Width C = K * H of the verifier's hidden states, K captured layers side by side."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Kinds of layer that occur, each once."""
        return tuple(kind for kind in LAYER_KINDS if kind in self.layer_types)

    def window_of(self, kind: LayerKind) -> int | None:
        """Return the attention window of a kind of layer, None where the whole context is seen."""
        return self.sliding_window if kind == "sliding_attention" else None

    def is_causal(self, kind: LayerKind) -> bool:
        """Return whether a kind of layer is causal inside a block; full layers never are."""
        return kind == "sliding_attention" and self.sliding_is_causal

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> DrafterConfig:
        """Return the config of a Hugging Face config.json; raises ValueError or KeyError if it is no DFlash drafter."""
        _refuse_unsupported(raw)
        dflash = raw["dflash_config"]
        return cls(
            **{name: raw[name] for name in _SAME_NAME},
            block_size=dflash.get("block_size", raw.get("block_size")),
            mask_token_id=dflash["mask_token_id"],
            target_layer_ids=tuple(dflash["target_layer_ids"]),
            layer_types=_layer_types(raw),
            sliding_window=raw.get("sliding_window"),
            sliding_is_causal=bool(raw.get("is_causal", dflash.get("causal", True))),
            rope_theta=float(_rope_theta(raw)),
            attention_bias=bool(raw.get("attention_bias", False)),
            initializer_range=float(raw.get("initializer_range", 0.02)),
        )

    def to_json(self, *, dtype: str = "float32") -> dict[str, Any]:
        """Return the config.json that vLLM and SGLang read; block_size stands twice since each looks elsewhere."""
        slides = "sliding_attention" in self.layer_types
        raw: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": dtype,
            **{name: getattr(self, name) for name in _SAME_NAME},
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": False,
            "layer_types": list(self.layer_types),
            "use_sliding_window": slides,
            "sliding_window": self.sliding_window if slides else None,
            "max_window_layers": 0 if slides else self.num_hidden_layers,
            "block_size": self.block_size,
            "dflash_config": {
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
        }
        if slides and not self.sliding_is_causal:
            raw["is_causal"] = False  # engines take a sliding layer as causal unless told
        return raw

    @classmethod
    def load(cls, path: Path) -> DrafterConfig:
        """Read a config.json; raises OSError, ValueError or KeyError."""
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))


_SAME_NAME = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
    "rms_norm_eps",
    "max_position_embeddings",
)


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"rope type {rope.get('rope_type', rope.get('type'))!r} is not supported, only 'default'")
    if raw.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError("partial_rotary_factor is not supported: a DFlash drafter rotates the whole head")


def _rope_theta(raw: Mapping[str, Any]) -> Any:
    return raw["rope_theta"] if "rope_theta" in raw else raw["rope_parameters"]["rope_theta"]


def _layer_types(raw: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    if raw.get("layer_types"):
        return tuple(raw["layer_types"])
    num_layers = raw["num_hidden_layers"]
    num_full = raw.get("max_window_layers", num_layers) if raw.get("use_sliding_window") else num_layers
    return tuple("full_attention" if index < num_full else "sliding_attention" for index in range(num_layers))


@dataclass(frozen=True, kw_only=True)
class DrafterRecipe:
    """The drafter as a recipe asks for it; what is left open (None) is taken from the verifier.

    `mask_token_id` has no default: a token that also means something else poisons training silently.
    """

    mask_token_id: int
    block_size: int = 16
    num_layers: int = 5
    target_layer_ids: tuple[int, ...] | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    layer_types: tuple[LayerKind, ...] | None = None
    sliding_window: int | None = None
    sliding_is_causal: bool = False

    def config(self, verifier: VerifierShape) -> DrafterConfig:
        """Return the drafter's config for a verifier; raises ValueError where the two do not fit."""
        num_ids = max(1, min(self.num_layers, verifier.num_hidden_layers - 1))
        return DrafterConfig(
            hidden_size=verifier.hidden_size,  # fc maps K * H to H, so no other size is possible
            intermediate_size=self.intermediate_size or verifier.intermediate_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_attention_heads or verifier.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads or verifier.num_key_value_heads,
            head_dim=self.head_dim or verifier.head_dim,
            vocab_size=verifier.vocab_size,
            num_target_layers=verifier.num_hidden_layers,
            block_size=self.block_size,
            mask_token_id=self.mask_token_id,
            target_layer_ids=self.target_layer_ids or spread_target_layers(verifier.num_hidden_layers, num_ids),
            layer_types=self.layer_types or (LAYER_KINDS[0],) * self.num_layers,
            sliding_window=self.sliding_window,
            sliding_is_causal=self.sliding_is_causal,
            rms_norm_eps=verifier.rms_norm_eps,
            rope_theta=verifier.rope_theta,
            max_position_embeddings=verifier.max_position_embeddings,
        )
