"""Plain greedy decoding by the verifier, many prompts at a time, with a KV cache. The drafter has no part in it.

Legend: B rows, Q tokens of a step, H hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.progress import Progress, Talk
from trainer.ragged import last_of, prefill
from trainer.verifier import Verifier


def greedy_responses(
    verifier: Verifier,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int,
    rows: int,
    talk: Talk,
) -> list[list[int]]:
    """Return the verifier's greedy response to each prompt, at most `max_new_tokens` long, its end token included.

    Prompts go through in groups of `rows`; raises StopRequested between two tokens when asked to stop.
    """
    responses: list[list[int]] = []
    for start in range(0, len(prompts), rows):
        began = time.perf_counter()
        group = _greedy_group(verifier, prompts[start : start + rows], max_new_tokens, talk)
        responses += group
        seconds = time.perf_counter() - began
        talk.report(Progress("responses", len(responses), len(prompts), None, sum(map(len, group)) / seconds))
    return responses


def _greedy_group(verifier: Verifier, prompts: Sequence[Tensor], max_new_tokens: int, talk: Talk) -> list[list[int]]:
    cache, states_BQH, _, lengths_B = prefill(verifier, prompts)
    tokens_B = verifier.next_tokens(last_of(states_BQH, lengths_B))
    responses: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    while True:
        for row, token in zip(going, tokens_B.tolist(), strict=True):
            responses[row].append(token)
        kept = [place for place, row in enumerate(going) if not _has_ended(responses[row], max_new_tokens, verifier)]
        if not kept:
            return responses
        talk.raise_if_stopped("generating responses")
        if len(kept) < len(going):
            kept_R = torch.tensor(kept, device=verifier.device)
            cache.select(kept_R)
            tokens_B, lengths_B, going = tokens_B[kept_R], lengths_B[kept_R], [going[place] for place in kept]
        valid_B1 = torch.ones_like(tokens_B[:, None], dtype=torch.bool)
        states_B1H, _ = cache.extend(tokens_B[:, None], lengths_B[:, None], valid_B1)
        tokens_B, lengths_B = verifier.next_tokens(states_B1H[:, 0]), lengths_B + 1


def _has_ended(response: Sequence[int], max_new_tokens: int, verifier: Verifier) -> bool:
    return len(response) >= max_new_tokens or response[-1] in verifier.end_ids
