"""The prompt-lookup baseline and the test for looping text. Pure: token lists in, numbers out.

Prompt lookup drafts what followed the latest earlier occurrence of the last few tokens. It needs no model, so a drafter
that does not beat it has learnt nothing but copying. Where text loops, lookup is nearly perfect: hence `is_looping`.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """Finds the latest earlier occurrence of the last n tokens, longest n first; grows by one token at a time."""

    def __init__(self, *, max_ngram: int, min_ngram: int = 1) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def append(self, token: int) -> None:
        """Add a token; the n-grams that end before it become findable, so that the last ones never find themselves."""
        end = len(self._tokens)
        for size in self._sizes:
            if end >= size:
                self._ends[tuple(self._tokens[end - size :])] = end
        self._tokens.append(token)

    def draft(self, num_tokens: int) -> list[int]:
        """Return `num_tokens` tokens that followed the match, repeated where text ends; [] without a match."""
        for size in self._sizes:
            if len(self._tokens) < size:
                continue
            end = self._ends.get(tuple(self._tokens[-size:]))
            if end is not None:
                followed = self._tokens[end : end + num_tokens]
                return [followed[place % len(followed)] for place in range(num_tokens)]
        return []


def count_lookup_cycles(
    prompt: Sequence[int], response: Sequence[int], *, block_size: int, max_ngram: int, min_ngram: int = 1
) -> int:
    """Return how many verifications prompt lookup needs for a response of greedy decoding.

    The first token comes with the prompt. Each further cycle drafts block_size - 1 tokens and keeps those that agree
    plus the verifier's own next one, cut at the response's end: the definition by which a drafter is measured.

    >>> count_lookup_cycles([1, 2, 3, 4], [1, 2, 3, 4, 9], block_size=4, max_ngram=2)
    1
    """
    index = NgramIndex(max_ngram=max_ngram, min_ngram=min_ngram)
    for token in [*prompt, *response[:1]]:
        index.append(token)
    done, cycles = 1, 0
    while done < len(response):
        kept = 1 + agreeing(index.draft(block_size - 1), response[done:])
        for token in response[done : done + kept]:
            index.append(token)
        done, cycles = done + kept, cycles + 1
    return cycles


def agreeing(draft: Sequence[int], truth: Sequence[int]) -> int:
    """Return the length of the longest prefix that both have.

    >>> agreeing([1, 2, 3], [1, 2, 4, 5])
    2
    """
    for index, (drafted, true) in enumerate(zip(draft, truth, strict=False)):
        if drafted != true:
            return index
    return min(len(draft), len(truth))


def is_looping(tokens: Sequence[int], *, max_period: int, min_repeated: int) -> bool:
    """Return whether `min_repeated` tokens in a row equal the one a period before, for a period up to `max_period`.

    >>> is_looping([5, 1, 2, 1, 2, 1, 2, 1], max_period=2, min_repeated=5)
    True
    >>> is_looping([1, 2, 3, 1, 2, 3], max_period=2, min_repeated=2)
    False
    """
    return any(_longest_repeat(tokens, period) >= min_repeated for period in range(1, max_period + 1))


def _longest_repeat(tokens: Sequence[int], period: int) -> int:
    longest = run = 0
    for earlier, later in zip(tokens, tokens[period:], strict=False):
        run = run + 1 if earlier == later else 0
        longest = max(longest, run)
    return longest
