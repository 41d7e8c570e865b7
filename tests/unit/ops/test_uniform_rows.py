"""Long stretches in which nothing new is said: what is left out of them, and that nothing telling ever is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.ops.uniform_rows import EDGE_ROWS, EVERY, FLOOD_ROWS, WHOLE_ROWS, UniformRows
from opsctl.records.events import Line

LENGTH = 6000


def looked_at(texts: list[str]) -> tuple[list[str], UniformRows]:
    rows = UniformRows(Line(0.0, text) for text in ["begin"] * WHOLE_ROWS + texts)
    return [row.text for row in rows][WHOLE_ROWS:], rows


def steps(first: int = 0) -> list[str]:
    return [f"step {step} loss 2.3" for step in range(first, first + LENGTH)]


def test_a_uniform_stretch_keeps_its_edges_and_one_row_of_many_between() -> None:
    kept, rows = looked_at(steps())
    assert kept[:EDGE_ROWS] == steps()[:EDGE_ROWS]
    assert kept[-EDGE_ROWS:] == steps()[-EDGE_ROWS:]
    assert len(kept) + rows.num_dropped == LENGTH
    assert len(kept) <= 2 * EDGE_ROWS + LENGTH // EVERY + 1
    assert kept == sorted(kept, key=lambda text: int(text.split()[1]))


@pytest.mark.parametrize(
    "telling",
    [
        "ValueError: no such column",
        "Traceback (most recent call last):",
        "RuntimeError: CUDA out of memory.",
        "Killed",
        "step 7 loss nan",
    ],
)
def test_a_telling_row_stays_with_its_neighbours(telling: str) -> None:
    kept, _ = looked_at([*steps(), telling, *steps(LENGTH)])
    at = kept.index(telling)
    assert kept[at - EDGE_ROWS : at] == steps()[-EDGE_ROWS:]
    assert kept[at + 1 : at + 1 + EDGE_ROWS] == steps(LENGTH)[:EDGE_ROWS]


@pytest.mark.parametrize("row", [lambda i: f"step {i}: CUDA out of memory, skipping batch", lambda i: f"KeyError: {i}"])
def test_a_flood_of_telling_rows_is_thinned_only_after_many(row: Callable[[int], str]) -> None:
    kept, rows = looked_at([row(1000 + number) for number in range(LENGTH)])
    assert kept[:FLOOD_ROWS] == [row(1000 + number) for number in range(FLOOD_ROWS)]
    assert kept[-EDGE_ROWS:] == [row(1000 + LENGTH - EDGE_ROWS + number) for number in range(EDGE_ROWS)]
    assert rows.num_dropped > LENGTH / 2


def test_a_log_of_usual_size_is_looked_at_whole() -> None:
    rows = UniformRows(Line(0.0, f"step {number} loss 2.3") for number in range(WHOLE_ROWS))
    assert sum(1 for _ in rows) == WHOLE_ROWS
    assert rows.num_dropped == 0
