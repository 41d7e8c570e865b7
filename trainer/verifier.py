"""The frozen verifier: a Hugging Face causal model, read for hidden states and asked for next tokens. It never trains.

Attention is always given as an explicit boolean mask to torch's own fused attention: nothing is compiled behind the
caller's back, and packed documents or rows of different lengths cannot see each other.
Legend: B rows, S tokens, Q new tokens, T cached and new tokens, H hidden, V vocabulary, C = K * H captured states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from trainer.batch import Batch
from trainer.capture import LayerCapture
from trainer.errors import ConfigError
from trainer.sections import VerifierConfig
from trainer.shape import VerifierShape
from trainer.verifier_path import check_path

HF: Any = transformers  # it ships types for a part of itself only
ATTENTION_KINDS = {"full_attention", "sliding_attention"}


def verifier_shape(config: VerifierConfig) -> VerifierShape:
    """Return the sizes of the configured verifier without loading weights; raises ConfigError."""
    if config.path is None:
        return config.demo.shape()
    path = check_path(config)
    try:
        return shape_of(HF.AutoConfig.from_pretrained(path, local_files_only=not config.allow_download))
    except (OSError, ValueError) as error:
        raise ConfigError(f"verifier.path: cannot read the config.json of {path}: {error}") from error


def shape_of(config: Any) -> VerifierShape:
    """Return the sizes in a Hugging Face config (of the text part, where a model has several)."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    return VerifierShape(
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        intermediate_size=text.intermediate_size,
        rope_theta=_rope_theta(text),
        rms_norm_eps=text.rms_norm_eps,
        max_position_embeddings=text.max_position_embeddings,
    )


def _rope_theta(config: Any) -> float:
    parameters: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    # a model whose kinds of layer rotate differently has one entry a kind
    parameters = parameters.get("full_attention", parameters)
    return float(parameters.get("rope_theta") or getattr(config, "rope_theta", None) or 1e4)


def document_positions(document_ids_BS: Tensor) -> Tensor:
    """Return positions [B, S] that start at 0 with each run of one document id."""
    index_S = torch.arange(document_ids_BS.shape[1], device=document_ids_BS.device)
    is_first_BS = torch.ones_like(document_ids_BS, dtype=torch.bool)
    is_first_BS[:, 1:] = document_ids_BS[:, 1:] != document_ids_BS[:, :-1]
    start_BS = torch.where(is_first_BS, index_S, 0).cummax(dim=1).values
    return index_S - start_BS


class Verifier:
    """A frozen causal language model in evaluation mode, with the layers whose outputs the drafter reads."""

    def __init__(self, model: Any, target_layer_ids: Sequence[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config: Any = model.config
        self.shape = shape_of(self.config)
        self.target_layer_ids = tuple(target_layer_ids)
        self._decoder = model.get_decoder()
        self._check()

    def _check(self) -> None:
        kinds = set(getattr(self._decoder.config, "layer_types", None) or ())
        if kinds - ATTENTION_KINDS:
            raise ConfigError(
                f"verifier: layers of kind {', '.join(sorted(kinds - ATTENTION_KINDS))} are not supported"
            )
        beyond = [layer for layer in self.target_layer_ids if not 0 <= layer < self.shape.num_hidden_layers]
        if beyond or not self.target_layer_ids:
            raise ConfigError(
                f"target_layer_ids {list(self.target_layer_ids)} must name layers of the verifier, "
                f"0 to {self.shape.num_hidden_layers - 1}"
            )

    @classmethod
    def load(
        cls,
        path: Path | str,
        target_layer_ids: Sequence[int],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        allow_download: bool = False,
    ) -> Verifier:
        """Return the verifier in a Hugging Face folder; raises ConfigError where transformers cannot load it."""
        HF.utils.logging.disable_progress_bar()  # a log is no terminal
        try:
            model = HF.AutoModelForCausalLM.from_pretrained(
                str(path), dtype=dtype, attn_implementation="sdpa", local_files_only=not allow_download
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"verifier.path: cannot load {path}: {error}") from error
        return cls(model.to(device), target_layer_ids)

    @property
    def embed_tokens(self) -> Tensor:
        """The frozen input embedding [V, H]."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def lm_head(self) -> Tensor:
        """The frozen output projection [V, H]; the same tensor as the embedding where they are tied."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.device

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a response."""
        ends = getattr(self.config.get_text_config(), "eos_token_id", None)
        generation = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        return frozenset(_ids(ends)) | frozenset(_ids(generation))

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Tensor:
        """Return the captured states [B, S, C] of packed rows; no document sees another, each starts at position 0."""
        document_BS = batch.document_ids_BS
        position_BS = document_positions(document_BS)
        same_BSS = document_BS[:, :, None] == document_BS[:, None, :]
        # Row padding is a document of its own, so that no row of the softmax is empty.
        return self.states(batch.input_ids_BS, position_BS, key_positions_BT=position_BS, visible_BQT=same_BSS)[1]

    @torch.no_grad()
    def states(
        self,
        input_ids_BQ: Tensor,
        positions_BQ: Tensor,
        *,
        key_positions_BT: Tensor,
        visible_BQT: Tensor,
        cache: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Return final (normed) states [B, Q, H] and captured ones [B, Q, C]; a visible key is seen if not later."""
        masks = self._masks(visible_BQT, positions_BQ[:, :, None], key_positions_BT[:, None, :])
        with LayerCapture(self._decoder.layers, self.target_layer_ids) as capture:
            output = self._decoder(
                input_ids=input_ids_BQ,
                position_ids=positions_BQ,
                attention_mask=masks,
                cache=cache,
                use_cache=cache is not None,
            )
        return output.last_hidden_state, capture.joined()

    def _masks(self, visible_BQT: Tensor, query_BQ1: Tensor, key_B1T: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the mask [B, 1, Q, T], one a kind of layer where some layers slide over a window."""
        full_B1QT = (visible_BQT & (key_B1T <= query_BQ1))[:, None]
        config = self._decoder.config
        if "sliding_attention" not in (getattr(config, "layer_types", None) or ()):
            return full_B1QT
        sliding_B1QT = full_B1QT & (query_BQ1 < key_B1T + config.sliding_window)[:, None]
        return {"full_attention": full_B1QT, "sliding_attention": sliding_B1QT}

    def next_tokens(self, states_BQH: Tensor) -> Tensor:
        """Return the token [B, Q] of greatest logit after each final state."""
        return F.linear(states_BQH.to(self.lm_head.dtype), self.lm_head).argmax(dim=-1)


def _ids(value: int | Sequence[int] | None) -> Sequence[int]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else value
