"""Which rows of a pane are new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.pane.scrollback import Scrollback, end_of_overlap
from opsctl.agent.pane.watch import begin_of_job


def test_the_first_capture_is_new_as_a_whole() -> None:
    assert Scrollback().new_rows(["a", "b"], is_whole=True) == ["a", "b"]


def test_rows_that_were_seen_are_not_new() -> None:
    pane = Scrollback(["a", "b", "c"])
    assert pane.new_rows(["b", "c", "d"], is_whole=False) == ["d"]
    assert pane.new_rows(["b", "c", "d"], is_whole=False) == []


def test_a_gap_is_told_and_an_older_look_closes_it() -> None:
    pane = Scrollback(["a", "b"])
    assert pane.new_rows(["x", "y"], is_whole=False) is None
    assert pane.new_rows(["a", "b", "w", "x", "y"], is_whole=True) == ["w", "x", "y"]


def test_rows_that_were_drawn_anew_are_new_and_their_neighbours_are_not() -> None:
    pane = Scrollback(["head", "bar one 10%", "bar two 3%", "note"])
    assert pane.new_rows(["head", "bar one 20%", "bar two 3%", "note"], is_whole=True) == ["bar one 20%"]


@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(1, 20), st.data())
def test_however_the_looks_fall_each_row_comes_once(rows: list[int], size: int, data: st.DataObject) -> None:
    texts = [f"row {row}" for row in rows]
    pane, seen, at = Scrollback(height=0), [], 0
    while at < len(texts):
        at = min(len(texts), at + data.draw(st.integers(1, size)))
        seen += pane.new_rows(texts[max(0, at - 2 * size) : at], is_whole=at <= 2 * size) or []
    assert seen == texts


def test_where_known_rows_and_a_capture_meet() -> None:
    assert end_of_overlap(["a", "b"], ["c"]) is None
    assert end_of_overlap(["x", "a"], ["a", "b"]) == 1
    assert end_of_overlap([], ["a"]) is None


def test_the_newest_start_of_a_job_is_its_begin() -> None:
    rows = ["$ python a.py -x", "Killed", "$ python a.py -x", "step 1"]
    assert begin_of_job(rows, ("python3.11", "a.py", "-x")) == 3
    assert begin_of_job(rows, ("python3.11", "b.py")) == 0
    assert begin_of_job(rows, ()) == 0
