"""What training reads of the frozen verifier: hidden states, from the model as it goes or from files; its weights.

Where states are stored the model is loaded only to compute them and to measure, and takes no memory in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.batch import Batch
from trainer.model_config import DrafterConfig
from trainer.prepare import Prepared, prepare_states
from trainer.progress import Talk
from trainer.ranks import PREPARE_TIMEOUT_S, Ranks
from trainer.recipe import Recipe
from trainer.step import Frozen
from trainer.verifier import Verifier


@dataclass(frozen=True)
class Reading:
    """Hidden states [B, S, C] of a batch, the weights that the drafter borrows, and the verifier itself on request."""

    hidden: Callable[[Batch], Tensor]
    frozen: Frozen
    verifier: Callable[[], Verifier]


def open_reading(
    recipe: Recipe,
    prepared: Prepared,
    config: DrafterConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    ranks: Ranks,
    talk: Talk,
) -> Reading:
    """Load the verifier; where the recipe says so, store its hidden states and let it go. Raises what both raise."""

    def load() -> Verifier:
        return Verifier.load(
            prepared.verifier_path,
            config.target_layer_ids,
            device=device,
            dtype=dtype,
            allow_download=recipe.verifier.allow_download,
        )

    verifier = load()
    # Plain tensors: to the compiler a Parameter is another type than what the warm-up used.
    frozen = Frozen(verifier.embed_tokens.detach(), verifier.lm_head.detach())
    if recipe.verifier.hidden_states == "online":
        return Reading(verifier.hidden, frozen, lambda: verifier)
    with ranks.node_leader_first("storing hidden states", timeout_s=PREPARE_TIMEOUT_S):
        stored = prepare_states(prepared, recipe.corpus, recipe.data, verifier, dtype=dtype, talk=talk)
    return Reading(stored.hidden, frozen, load)
