"""Progress bars are thinned, everything else is kept byte for byte, however the output is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.recorder.redraws import Redraws

PIECES = st.lists(st.tuples(st.binary(max_size=12), st.floats(0, 0.5)), max_size=30)


def fed(*pieces: tuple[bytes, float]) -> bytes:
    """What is kept of pieces that come at these times, and released at the end."""
    redraws, out = Redraws(), b""
    for data, moment in pieces:
        if redraws.due is not None and moment >= redraws.due:
            out += redraws.overdue(moment)
        out += redraws.feed(data, moment)
    return out + redraws.release(1e9)


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        pytest.param([(b"a\nb", 0.0), (b"c\n", 0.1)], b"a\nbc\n", id="rows"),
        pytest.param([(b"a\r\nb\r", 0.0), (b"\n", 0.1)], b"a\r\nb\r\n", id="CRLF, cut in the middle"),
        pytest.param([(b"\r 1%\r 2%\r 3%\n", 0.0)], b"\r 1%\r 3%\n", id="first and last of a row"),
        pytest.param([(b"\r 1%", 0.0), (b"\r 2%", 0.5), (b"\r 3%", 1.2)], b"\r 1%\r 2%\r 3%", id="due after a second"),
        pytest.param(
            [(b" 1%\r", 0.0), (b" 2%\r", 0.1), (b"\n", 0.2)], b" 1%\r 2%\r\n", id="a blank end keeps the last"
        ),
        pytest.param([(b"\r 1%\r 2%\nx\r 3%\r", 0.0)], b"\r 1%\r 2%\nx\r 3%\r", id="each row counts anew"),
        pytest.param([(b"\x00a\r\x01b\r\x02c\r", 0.0)], b"\x00a\r\x01b\r\x02c\r", id="binary data is no bar"),
    ],
)
def test_what_is_kept(pieces: list[tuple[bytes, float]], kept: bytes) -> None:
    assert fed(*pieces) == kept


def test_partial_row_is_shown_at_once_unless_it_is_being_redrawn() -> None:
    redraws = Redraws()
    assert redraws.feed(b"Password: ", 0.0) == b"Password: "
    assert redraws.feed(b"\r 1%", 0.1) == b"\r"
    assert redraws.due == 1.1
    assert redraws.overdue(1.1) == b" 1%"
    assert redraws.feed(b"0%\r", 1.2) + redraws.release(3.0) == b"0%\r"


@pytest.mark.parametrize("frame", ["\r{n}%", "{n}%\r"], ids=["begins with the return", "ends with the return"])
def test_one_frame_a_second_is_kept(frame: str) -> None:
    kept = fed(*((frame.format(n=n).encode(), n / 100) for n in range(1000)))
    assert 10 <= kept.count(b"%") <= 12, "ten seconds, and the last state"
    assert kept.strip().endswith(b"\r999%" if frame[0] == "\r" else b"999%")


@given(PIECES)
def test_data_without_bars_is_kept_whole(pieces: list[tuple[bytes, float]]) -> None:
    moments = [sum(step for _, step in pieces[: place + 1]) for place in range(len(pieces))]
    plain = [data.replace(b"\r", b"\n") for data, _ in pieces]
    assert fed(*zip(plain, moments, strict=True)) == b"".join(plain)


@given(PIECES)
def test_bars_a_second_apart_are_kept_whole(pieces: list[tuple[bytes, float]]) -> None:
    cut = [piece for data, _ in pieces for piece in data.replace(b"\n", b"x").split(b"\r")]
    spaced = [(b"\r" + piece, 1.1 * place) for place, piece in enumerate(cut)]
    assert fed(*spaced) == b"".join(data for data, _ in spaced)


@given(PIECES, st.integers(1, 7))
def test_nothing_is_kept_twice_or_out_of_order(pieces: list[tuple[bytes, float]], size: int) -> None:
    whole = b"".join(data for data, _ in pieces)
    kept = fed(*((whole[start : start + size], 0.0) for start in range(0, len(whole), size)))
    rest = iter(whole)
    assert all(byte in rest for byte in kept), "what is kept is a subsequence of what came"
    assert kept.count(b"\n") == whole.count(b"\n")


def test_long_output_takes_time_that_grows_with_it() -> None:
    redraws = Redraws()
    redraws.feed(b"a\rb" + b"x" * 2_000_000, 0.0)
    redraws.feed(b"\r" * 500_000, 0.0)
    assert redraws.partial == b""
