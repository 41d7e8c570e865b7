"""Tiny language models whose greedy text varies, and drafters whose guesses are known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from trainer.verifier import Verifier

HF: Any = transformers
VOCAB = 64
HIDDEN = 32


def tiny_model(*, eos: int | None = None, sliding_window: int | None = None, seed: int = 3) -> Any:
    """Return a random Qwen3 model of four layers; with a window, every other layer slides."""
    kinds = ["full_attention", "sliding_attention"] if sliding_window else ["full_attention"]
    config = HF.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        layer_types=(kinds * 4)[:4],
        use_sliding_window=bool(sliding_window),
        sliding_window=sliding_window,
        tie_word_embeddings=False,
        eos_token_id=eos,
        bos_token_id=None,
        initializer_range=0.3,  # large, so that the next token depends on more than the last one
        attn_implementation="sdpa",
    )
    torch.manual_seed(seed)
    model = HF.Qwen3ForCausalLM(config)
    with torch.no_grad():  # rows of one length: the state lm_head[t] has its greatest logit at t
        torch.nn.functional.normalize(model.lm_head.weight, out=model.lm_head.weight.data)
    return model


def tiny_verifier(layers: Sequence[int] = (0, 2), **choices: Any) -> Verifier:
    """Return a verifier around a tiny model."""
    return Verifier(tiny_model(**choices), layers)


def prompts(*lengths: int, seed: int = 5) -> list[Tensor]:
    """Return prompts of these lengths, no two with the same first token."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(VOCAB, (length,), generator=generator) for length in lengths]
    for first, prompt in enumerate(made):
        prompt[0] = first
    return made


@dataclass(frozen=True)
class Sizes:
    """Sizes of a scripted drafter."""

    block_size: int
    mask_token_id: int = VOCAB - 1


class ScriptedDrafter:
    """Drafts the true continuation of known texts, except at positions where it is told to be wrong."""

    def __init__(
        self, verifier: Verifier, texts: Sequence[Sequence[int]], *, block_size: int, wrong_every: int
    ) -> None:
        self.config = Sizes(block_size)
        self._verifier, self._texts, self._wrong_every = verifier, texts, wrong_every
        self.seen_context: list[Tensor] = []

    def context_features(self, target_hidden_BSC: Tensor) -> Tensor:
        """Return the first layer's state: at position 0 it depends on the first token alone, which names the text."""
        return target_hidden_BSC[..., :HIDDEN]

    def draft_block(
        self, context_BSH: Tensor, block_embedding_BQH: Tensor, positions_BP: Tensor, context_mask_BS: Tensor | None
    ) -> Tensor:
        """Return states that decode to the script at the block's positions."""
        assert context_mask_BS is not None
        self.seen_context.append(context_mask_BS.sum(dim=1))
        texts_B = self._which(context_BSH[:, 0])
        guesses = [
            [self._guess(self._texts[text], position) for position in row]
            for text, row in zip(texts_B, positions_BP[:, -self.config.block_size :].tolist(), strict=True)
        ]
        return self._verifier.lm_head[torch.tensor(guesses)]

    def _which(self, first_BH: Tensor) -> list[int]:
        starts_T = torch.tensor([[text[0]] for text in self._texts])
        zeros_T1 = torch.zeros_like(starts_T)
        _, states_T1C = self._verifier.states(
            starts_T,
            zeros_T1,
            key_positions_BT=zeros_T1,
            visible_BQT=torch.ones_like(starts_T, dtype=torch.bool)[..., None],
        )
        return torch.cdist(first_BH, states_T1C[:, 0, :HIDDEN]).argmin(dim=1).tolist()

    def _guess(self, text: Sequence[int], position: int) -> int:
        if position >= len(text):
            return 0
        return (text[position] + (self._wrong_every > 0 and position % self._wrong_every == 0)) % VOCAB
