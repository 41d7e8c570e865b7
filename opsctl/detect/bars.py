"""Tells the training's own progress bar from others that do not say what they count, such as an evaluation's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.detect.steps import StepRow

NEARLY_ALL = 0.95  # a bar that is cleared at its end is last seen a little before it


@dataclass
class Bars:
    """State of the fold: how far the training's bar and the newest other one have come; changed in place."""

    total: int | None = None
    step: int = 0
    rows: int = 0  # of training, since its bar was last another one; 0 before the first
    other_total: int = 0
    other_step: int = 0
    other_rows: int = 0
    crossed: tuple[int, int] = (0, 0)  # total and step of the other bar when a loss was told

    def is_other(self, row: StepRow) -> bool:
        """Fold one row in; says whether it is a bar that counts something else than steps of training."""
        is_known = row.num_steps is None or row.num_steps == self.total
        if not row.is_anonymous or is_known or not self.rows or self._takes_over(row):
            self._own(row)
            return False
        self.other_rows = self.other_rows + 1 if row.num_steps == self.other_total else 1
        self.other_total, self.other_step = row.num_steps or 0, row.step or 0
        return True

    def _own(self, row: StepRow) -> None:
        if row.num_steps is not None and row.num_steps != self.total:
            self.total, self.rows = row.num_steps, 0
        self.rows += 1
        self.step = row.step if row.step is not None else self.step
        if row.loss is not None:
            self.crossed = self.other_total, self.other_step

    def _takes_over(self, row: StepRow) -> bool:
        """Whether the other bar is the training's after all: it went on past a loss, or outlives one that is full."""
        total, step = self.crossed
        if row.num_steps == total and (row.step or 0) > step:
            return True
        is_full = self.total is not None and self.step >= NEARLY_ALL * self.total
        return is_full and row.num_steps == self.other_total and self.other_rows >= self.rows
