"""A start that is broken off says what may go on."""

from __future__ import annotations

import pytest

from opsctl.errors import Busy
from opsctl.ops.starting import starting


def _said(error: BaseException) -> list[str]:
    said: list[str] = []
    with pytest.raises(type(error)), starting("i1", said.append):
        raise error
    return said


def test_an_interrupted_start_names_the_way_on() -> None:
    assert "`opsctl train stop i1`" in "".join(_said(KeyboardInterrupt()))


def test_a_refused_start_has_nothing_to_say() -> None:
    assert _said(Busy("it goes on")) == []
