"""The verifier's KV cache for rows of different lengths that decode together. It decides nothing about tokens.

Every forward appends the same number of slots to each row; which of them count is a mask, and attention goes by the
position of a slot, not by its place. So rejecting a draft is clearing a flag; slots that no row keeps are cropped.
Legend: B rows, Q new tokens, T cached slots, H hidden, C = K * H captured states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from trainer.verifier import Verifier


class RaggedCache:
    """Keys and values of the tokens seen so far, row by row."""

    def __init__(self, verifier: Verifier, num_rows: int) -> None:
        self._verifier = verifier
        # Given no config it keeps every slot: a sliding layer's own eviction would go by place, not by position.
        self._cache: Any = transformers.DynamicCache()
        self._positions_BT = torch.empty(num_rows, 0, dtype=torch.int64, device=verifier.device)
        self._valid_BT = torch.empty(num_rows, 0, dtype=torch.bool, device=verifier.device)

    @property
    def num_slots(self) -> int:
        """Slots held for each row, counting or not."""
        return self._valid_BT.shape[1]

    @torch.no_grad()
    def extend(self, input_ids_BQ: Tensor, positions_BQ: Tensor, valid_BQ: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens and return their final states [B, Q, H] and captured states [B, Q, C].

        What is returned for a token that is not valid means nothing; no other token sees it.
        """
        self._positions_BT = torch.cat((self._positions_BT, positions_BQ), dim=1)
        self._valid_BT = torch.cat((self._valid_BT, valid_BQ), dim=1)
        visible_BQT = self._valid_BT[:, None, :].expand(-1, input_ids_BQ.shape[1], -1)
        return self._verifier.states(
            input_ids_BQ,
            positions_BQ,
            key_positions_BT=self._positions_BT,
            visible_BQT=visible_BQT,
            cache=self._cache,
        )

    def keep_last(self, keep_BQ: Tensor) -> None:
        """Of the last Q tokens keep those marked; the others are as if never seen."""
        self._valid_BT[:, -keep_BQ.shape[1] :] &= keep_BQ
        self._crop_to(int(self._valid_BT.any(dim=0).nonzero().max()) + 1)

    def _crop_to(self, num_slots: int) -> None:
        if num_slots == self.num_slots:
            return
        self._cache.crop(num_slots - self.num_slots)
        self._positions_BT = self._positions_BT[:, :num_slots]
        self._valid_BT = self._valid_BT[:, :num_slots]

    def select(self, rows_R: Tensor) -> None:
        """Go on with these rows only, in this order."""
        self._cache.batch_select_indices(rows_R)
        self._positions_BT, self._valid_BT = self._positions_BT[rows_R], self._valid_BT[rows_R]


def prefill(verifier: Verifier, prompts: Sequence[Tensor]) -> tuple[RaggedCache, Tensor, Tensor, Tensor]:
    """Return a cache that holds the prompts, their final states [B, Q, H], captured states [B, Q, C], and lengths [B].

    Rows are padded on the right to the longest; states beyond a row's length mean nothing.
    """
    width, device = max(len(prompt) for prompt in prompts), verifier.device
    lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
    ids_BQ = torch.stack([F.pad(prompt, (0, width - len(prompt))) for prompt in prompts]).to(device)
    positions_BQ = torch.arange(width, device=device).expand(len(prompts), -1)
    cache = RaggedCache(verifier, len(prompts))
    states_BQH, captured_BQC = cache.extend(ids_BQ, positions_BQ, positions_BQ < lengths_B[:, None])
    return cache, states_BQH, captured_BQC, lengths_B


def last_of(states_BQX: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the state [B, X] of each row's last token."""
    return states_BQX[torch.arange(len(lengths_B), device=states_BQX.device), lengths_B - 1]
