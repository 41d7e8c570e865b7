"""Raw output to rows: what terminals do is undone, byte ranges count raw bytes, and cuts change nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.detect.lines import MAX_ROW_BYTES, LineState, display_width, flush, split, strip_ansi
from opsctl.records.events import Line

PIECES = st.lists(
    st.sampled_from(
        [
            b"step 1",
            b"\n",
            b"\r",
            b"\r\n",
            b"\x08",
            b"\x1b[31m",
            b"\x1b[0m",
            b"\x1b",
            "█".encode(),
            "段".encode(),
            b"\xff",
        ]
    ),
    max_size=40,
).map(b"".join)


def rows(data: bytes, *cuts: int, columns: int = 0) -> list[Line]:
    state, found = LineState(columns=columns), []
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in itertools.pairwise(edges):
        state, more = split(state, data[begin:end], 1.0)
        found += more
    return [*found, *flush(state, 1.0)[1]]


def texts(data: bytes, **options: int) -> list[str]:
    return [row.text for row in rows(data, **options)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\r\n", ["a", "b"]),
        (b"10%\r20%\rdone\n", ["10%", "20%", "done"]),
        (b"1/9\x08\x08\x082/9\n", ["1/9", "2/9"]),
        (b"\x1b[1;35mKeyError\x1b[0m: \x1b[35m'x'\x1b[0m\n", ["KeyError: 'x'"]),
        (b"\x1b]0;title\x07row\n", ["row"]),
        (b"cut inside \x1b[1;3", ["cut inside "]),
        ("bar ███".encode()[:-1], ["bar ██"]),
        (b"a\tb\n", ["a\tb"]),
        (b"\n\n", ["", ""]),
    ],
)
def test_what_terminals_do_is_undone(data: bytes, expected: list[str]) -> None:
    assert texts(data) == expected


@given(PIECES, st.lists(st.integers(0, 200), max_size=8))
def test_rows_are_equal_however_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut <= len(data)]
    assert rows(data, *cuts) == rows(data)
    assert rows(data, *cuts, columns=10) == rows(data, columns=10)


@given(PIECES)
def test_byte_ranges_follow_one_another_and_cover_their_rows(data: bytes) -> None:
    found = rows(data)
    assert all(before.end <= after.start for before, after in itertools.pairwise(found))
    for row in found:
        assert strip_ansi(row.text) == row.text
        assert 0 <= row.start <= row.end <= len(data)


def test_a_redraw_is_marked_and_the_rest_of_a_bar_is_not() -> None:
    found = rows(b"1%\r2%\r3%\n4%")
    assert [row.is_redraw for row in found] == [True, True, False, False]
    assert [row.is_partial for row in found] == [False, False, False, True]


@pytest.mark.parametrize("cut", [1, MAX_ROW_BYTES - 1, MAX_ROW_BYTES, MAX_ROW_BYTES + 1])
def test_an_endless_row_is_handed_on_in_parts(cut: int) -> None:
    data = ("é" * MAX_ROW_BYTES).encode() + b"\r"
    found = rows(data, cut)
    assert found == rows(data)
    assert max(len(row.text.encode()) for row in found) <= MAX_ROW_BYTES
    assert "".join(row.text for row in found) == "é" * MAX_ROW_BYTES


def test_the_state_keeps_no_more_than_one_row() -> None:
    state = LineState()
    for _ in range(1000):
        state, _ = split(state, b"x" * 1000, 0.0)
    assert len(state.pending) <= MAX_ROW_BYTES


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"0123456789abc\n", ["0123456789abc"]),  # no newline inside: one row as it is
        (b"0123456789\nabc\nnew\n", ["0123456789abc", "new"]),
        (b"012345678\nabc\n", ["012345678 abc"]),  # the blank at the cut was trimmed
        (b"012345678\nstep 1\n", ["012345678", "step 1"]),  # a row of its own that just ends there
        (b"0123456789\n[rank0]: x\n", ["0123456789", "[rank0]: x"]),  # no row goes on like this
        (b"01234567\nabc\n", ["01234567", "abc"]),
        ("段段段段a\n段b\n".encode(), ["段段段段a段b"]),  # a wide character did not fit into the last column
        ("│123456│\n│654321│\n".encode(), ["│123456│", "│654321│"]),
    ],
)
def test_hard_wraps_are_joined(data: bytes, expected: list[str]) -> None:
    assert texts(data, columns=10) == expected


def test_a_box_as_wide_as_the_pane_stays_in_rows() -> None:
    box = "╭──────────╮\n│ a        │\n╰──────────╯\nKeyError: 1\n".encode()
    assert texts(box, columns=12)[-1] == "KeyError: 1"
    assert len(texts(box, columns=12)) == 4


def test_wide_characters_take_two_columns() -> None:
    assert [display_width(text) for text in ("abc", "段错误", "e\u0301", "█")] == [3, 6, 1, 1]
