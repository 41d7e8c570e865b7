"""Minutes of healthy runs of all kinds through the folds: not one alarm."""

from __future__ import annotations

import pytest

from opsctl.detect import watcher
from opsctl.records.events import End, Tick
from tests.support.healthy import HealthyRun

CALM = {"starting", "healthy", "finished"}


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 12, 14])
def test_a_healthy_run_calls_nobody(seed: int) -> None:
    context = watcher.Context(compile_expected=True, pid=4242, gpu_bus_ids=("0000:17:00.0",))
    state, told = watcher.start(context, 0.0), []
    for event in HealthyRun(seed, 700.0).events():
        state, _ = watcher.observe(state, event)
        if isinstance(event, (Tick, End)):
            verdict = watcher.judge(state)
            told += [(event.time, verdict)] if verdict.verdict not in CALM else []
    assert not told
    assert watcher.judge(state).verdict == "finished"
