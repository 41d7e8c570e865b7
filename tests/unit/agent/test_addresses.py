"""A beginning means the one id that has it, and never one of several."""

from __future__ import annotations

import pytest

from opsctl.agent.addresses import meant
from opsctl.errors import UsageError


def test_a_beginning_of_several_is_refused_with_their_names() -> None:
    with pytest.raises(UsageError) as refused:
        meant("a", ["ab", "ac", "b"], noun="snapshots")
    assert refused.value.hint == "one of: ab, ac"


def test_an_id_that_others_begin_with_is_itself() -> None:
    assert meant("a", ["ab", "a"], noun="snapshots") == "a"
    assert meant("c", ["ab", "a"], noun="snapshots") == ""
