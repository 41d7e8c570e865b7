"""Messages on the wire: however the bytes are cut, the same messages come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.errors import ProtocolError
from opsctl.formats.frames import BEAT, FrameReader, frame

MESSAGES = st.lists(
    st.tuples(
        st.dictionaries(st.text(max_size=5).filter(lambda key: key != "size"), st.text(max_size=20), min_size=1),
        st.none() | st.binary(max_size=300),
    ),
    max_size=6,
)


@given(MESSAGES, st.lists(st.integers(min_value=1, max_value=200), max_size=30))
def test_cuts_change_nothing(messages: list[tuple[dict[str, str], bytes | None]], cuts: list[int]) -> None:
    wire = BEAT.join(frame(message, data) for message, data in messages)
    reader = FrameReader()
    found = []
    for cut in [*cuts, len(wire) + 1]:
        piece, wire = wire[:cut], wire[cut:]
        found += list(reader.feed(piece))
    expected = [
        {**message} if data is None else {**message, "size": len(data), "data": data} for message, data in messages
    ]
    assert found == expected


@pytest.mark.parametrize("row", [b"hello\n", b"[1]\n", b"\xff\n", b'"x"\n'])
def test_what_is_no_message_is_told(row: bytes) -> None:
    with pytest.raises(ProtocolError, match="no message"):
        list(FrameReader().feed(row))
