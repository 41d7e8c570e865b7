"""Minutes of healthy runs of all kinds through the folds: not one alarm."""

from __future__ import annotations

import pytest

from tests.support.healthy import CALM, HealthyRun, judged


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 12, 14])
def test_a_healthy_run_calls_nobody(seed: int) -> None:
    told = list(judged(HealthyRun(seed, 700.0)))
    assert [one for one in told if one[1].verdict not in CALM] == []
    assert told[-1][1].verdict == "finished"
