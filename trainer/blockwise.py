"""Real greedy block decoding, as an engine does it: draft a block, verify it, keep what agrees.

A cycle starts at the bonus token, the last token known. The drafter sees features of the positions before it, and a
block [bonus, MASK, ..., MASK]; the verifier then reads the bonus and the draft in one forward. Kept are the longest
prefix of the draft that equals the verifier's own choices, and its next choice, the new bonus. So the text is the
verifier's greedy text, whatever the drafter says. Prompts decode together, each at its own pace.
Legend: B rows still going, b block size, D = b - 1 drafted, S context positions, P = S + b, H hidden, C captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.progress import ShouldStop, never
from trainer.ragged import last_of, prefill
from trainer.signals import StopRequested
from trainer.verifier import Verifier


class BlockSizes(Protocol):
    """What decoding must know of a drafter's configuration."""

    @property
    def block_size(self) -> int:
        """Tokens of a block, the bonus token included."""
        ...

    @property
    def mask_token_id(self) -> int:
        """The token that stands for what is to be drafted."""
        ...


class BlockDrafter(Protocol):
    """What decoding asks of a drafter."""

    @property
    def config(self) -> BlockSizes:
        """The drafter's sizes."""
        ...

    def context_features(self, target_hidden_BSC: Tensor) -> Tensor:
        """Return one feature [B, S, H] for each position's captured states."""
        ...

    def draft_block(
        self, context_BSH: Tensor, block_embedding_BQH: Tensor, positions_BP: Tensor, context_mask_BS: Tensor | None
    ) -> Tensor:
        """Return the block's final states [B, b, H], seeing only context where the mask is True."""
        ...


@dataclass(frozen=True)
class Decoded:
    """One prompt's response and the number of verifications that gave all of it but its first token."""

    tokens: tuple[int, ...]
    num_cycles: int


def block_decode(
    verifier: Verifier,
    drafter: BlockDrafter,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    rows: int,
    should_stop: ShouldStop = never,
) -> list[Decoded]:
    """Return each prompt's greedy response, `rows` prompts at a time; raises StopRequested when asked to stop."""
    decoded: list[Decoded] = []
    for start in range(0, len(prompts), rows):
        group = _Group(verifier, drafter, prompts[start : start + rows], max_new_tokens)
        while group.going:
            if should_stop():
                raise StopRequested("while measuring acceptance")
            group.cycle()
        decoded += [Decoded(tuple(tokens), cycles) for tokens, cycles in zip(group.tokens, group.cycles, strict=True)]
    return decoded


class _Group:
    """Prompts that decode together; a row leaves once its response has ended."""

    def __init__(
        self, verifier: Verifier, drafter: BlockDrafter, prompts: Sequence[Tensor], max_new_tokens: int
    ) -> None:
        self._verifier, self._drafter, self._max_new_tokens = verifier, drafter, max_new_tokens
        self._cache, states_BQH, captured_BQC, self._start_B = prefill(verifier, prompts)
        self._bonus_B = verifier.next_tokens(last_of(states_BQH, self._start_B))
        self._context_BSH = F.pad(drafter.context_features(captured_BQC), (0, 0, 0, max_new_tokens + self._block_size))
        self.tokens: list[list[int]] = [[token] for token in self._bonus_B.tolist()]
        self.cycles = [0] * len(prompts)
        self.going = list(range(len(prompts)))
        self._drop_ended()

    @property
    def _block_size(self) -> int:
        return self._drafter.config.block_size

    @torch.no_grad()
    def cycle(self) -> None:
        """Draft and verify one block of every row that is still going."""
        block_Bb = self._draft()
        positions_Bb = self._start_B[:, None] + torch.arange(self._block_size, device=block_Bb.device)
        states_BbH, captured_BbC = self._cache.extend(
            block_Bb, positions_Bb, torch.ones_like(block_Bb, dtype=torch.bool)
        )
        choices_Bb = self._verifier.next_tokens(states_BbH)
        num_kept_B = num_agreeing(block_Bb[:, 1:], choices_Bb[:, :-1]) + 1
        self._cache.keep_last(positions_Bb < (self._start_B + num_kept_B)[:, None])
        self._add_context(captured_BbC, positions_Bb)
        self._start_B = self._start_B + num_kept_B
        self._bonus_B = choices_Bb.gather(1, num_kept_B[:, None] - 1)[:, 0]
        self._record(choices_Bb.tolist(), num_kept_B.tolist())
        self._drop_ended()

    def _draft(self) -> Tensor:
        """Return the block [B, b] to verify: the bonus token, then the drafter's guesses."""
        num_context = int(self._start_B.max())
        block_Bb = self._bonus_B[:, None].repeat(1, self._block_size)
        block_Bb[:, 1:] = self._drafter.config.mask_token_id
        context_BSH = self._context_BSH[:, :num_context]
        context_S = torch.arange(num_context, device=block_Bb.device).expand(len(block_Bb), -1)
        slots_Bb = self._start_B[:, None] + torch.arange(self._block_size, device=block_Bb.device)
        embedding_BbH = F.embedding(block_Bb, self._verifier.embed_tokens).to(context_BSH.dtype)
        positions_BP = torch.cat((context_S, slots_Bb), dim=1)
        states_BbH = self._drafter.draft_block(
            context_BSH, embedding_BbH, positions_BP, context_S < self._start_B[:, None]
        )
        block_Bb[:, 1:] = self._verifier.next_tokens(states_BbH[:, 1:])
        return block_Bb

    def _add_context(self, captured_BbC: Tensor, positions_Bb: Tensor) -> None:
        """Store the new positions' features. Those of rejected tokens are written too, and overwritten before any use:
        the next block starts at the first of them."""
        features_BbH = self._drafter.context_features(captured_BbC)
        index_BbH = positions_Bb[..., None].expand_as(features_BbH)
        self._context_BSH.scatter_(1, index_BbH, features_BbH)

    def _record(self, choices: list[list[int]], num_kept: list[int]) -> None:
        for row, chosen, kept in zip(self.going, choices, num_kept, strict=True):
            self.tokens[row] += until_end(chosen[:kept], self._verifier.end_ids)
            del self.tokens[row][self._max_new_tokens :]
            self.cycles[row] += 1

    def _drop_ended(self) -> None:
        kept = [place for place, row in enumerate(self.going) if not self._has_ended(self.tokens[row])]
        if len(kept) == len(self.going):
            return
        self.going = [self.going[place] for place in kept]
        if not kept:
            return
        kept_R = torch.tensor(kept, device=self._start_B.device)
        self._cache.select(kept_R)
        self._start_B, self._bonus_B = self._start_B[kept_R], self._bonus_B[kept_R]
        self._context_BSH = self._context_BSH[kept_R]

    def _has_ended(self, tokens: list[int]) -> bool:
        return len(tokens) >= self._max_new_tokens or tokens[-1] in self._verifier.end_ids


def num_agreeing(draft_BD: Tensor, choices_BD: Tensor) -> Tensor:
    """Return the length [B] of each row's longest prefix on which both agree."""
    return (draft_BD == choices_BD).cumprod(dim=1).sum(dim=1)


def until_end(tokens: Sequence[int], end_ids: frozenset[int]) -> list[int]:
    """Return the tokens up to and with the first that ends a response.

    >>> until_end([4, 5, 0, 6], frozenset({0}))
    [4, 5, 0]
    """
    for index, token in enumerate(tokens):
        if token in end_ids:
            return list(tokens[: index + 1])
    return list(tokens)
