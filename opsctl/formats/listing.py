"""Lists in messages: the first few names, and how many more there are. Pure; shipped inside the agent."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.errors import UsageError

_NUM_IDS = 6  # in one hint


def shortened(rows: Sequence[str], num: int) -> list[str]:
    """The first `num` rows, and one that says how many more there are.

    >>> shortened(["a", "b", "c"], 2)
    ['a', 'b', 'and 1 more']
    """
    rest = len(rows) - num
    return [*rows[:num], *([f"and {rest} more"] if rest > 0 else [])]


def some(names: Sequence[str], num: int) -> str:
    """The first `num` names in a sentence, and how many more there are.

    >>> some(["a", "b", "c"], 2), some(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    return " ".join([", ".join(names[:num]), *shortened(names, num)[num:]])


def ambiguous(beginning: str, ids: Sequence[str], *, noun: str) -> UsageError:
    """The refusal of a beginning that several ids have.

    >>> ambiguous("a", ["a1", "a2"], noun="snapshots").hint
    'one of: a1, a2'
    """
    hint = f"one of: {some(ids, _NUM_IDS)}"
    return UsageError(f"{beginning!r} is the beginning of {len(ids)} {noun}", hint=hint)
