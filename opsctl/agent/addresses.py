"""What people call a thing by: its id, or a beginning that no other id has. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.formats.listing import ambiguous


def meant(address: str, ids: Sequence[str], *, noun: str) -> str:
    """The id that `address` is or alone begins, "" where none is; raises UsageError where it begins several.

    >>> meant("ab", ["ab", "abc"], noun="snapshots"), meant("abc", ["abcd", "x"], noun="snapshots")
    ('ab', 'abcd')
    """
    if address in ids:
        return address
    matches = [one for one in ids if one.startswith(address)]
    if len(matches) > 1:
        raise ambiguous(address, matches, noun=noun)
    return matches[0] if matches else ""
