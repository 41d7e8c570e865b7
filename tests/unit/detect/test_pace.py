"""The pace of steps: compared with a good run, with what is typical, or with the run itself."""

from __future__ import annotations

import pytest

from opsctl.detect.figures import baseline
from opsctl.detect.pace import Pace
from opsctl.records.baseline import Baseline
from tests.unit.detect.watching import Watching, gpu


def test_a_good_runs_pace_is_the_measure() -> None:
    good = Watching()
    good.steps(40, every_s=0.5)
    kept = baseline(good.state)
    assert kept.step_s == 0.5
    slow = Watching(baseline=kept)
    slow.steps(40, every_s=1.0)
    assert slow.pair == ("degraded", "throughput_drop")
    assert "2.0 times" in slow.verdict.evidence[0]


def test_tokens_a_second_do_where_step_times_are_unknown() -> None:
    watch = Watching(baseline=Baseline(tokens_per_s=100_000.0))
    for step in range(1, 30):
        watch.line(f"step {step} loss 2.0 | 40k tok/s", after_s=1.0)
    assert watch.pair == ("degraded", "throughput_drop")


def test_against_itself_a_run_must_slow_down_by_more() -> None:
    watch = Watching()
    watch.steps(40)
    watch.steps(20, first=41, every_s=2.0)
    assert watch.pair == ("healthy", "ok")
    watch.steps(20, first=61, every_s=3.0)
    assert watch.pair == ("degraded", "throughput_drop")


def test_one_slow_step_and_one_pause_are_no_pace() -> None:
    watch = Watching(typical_step_s=1.0)
    watch.steps(20)
    watch.steps(1, first=21, every_s=30.0)
    watch.steps(5, first=22)
    assert watch.pair == ("healthy", "ok")


def test_a_toy_on_a_large_gpu_is_not_idle() -> None:
    watch = Watching()
    for step in range(1, 60):
        watch.line(f"step {step} loss 2.0", after_s=1.0)
        watch.sample(gpu(util=7, used=1800, power=90), after_s=0.0)
    assert watch.pair == ("healthy", "ok")


def test_at_the_pace_of_a_good_run_nothing_is_too_slow() -> None:
    watch = Watching(baseline=Baseline(step_s=1.0))
    for step in range(1, 60):
        watch.line(f"step {step} loss 2.0", after_s=1.0)
        watch.sample(gpu(util=7, power=90), after_s=0.0)
    assert watch.pair == ("healthy", "ok")


def test_rows_of_metrics_that_were_read_together_keep_their_own_times() -> None:
    watch = Watching()
    for batch in range(8):
        watch.now += 2.0
        for step in range(1, 5):
            watch.metrics(time=watch.now - 2.0 + 0.5 * step, step=4 * batch + step, loss=2.0)
    assert watch.verdict.step_s == 0.5
    assert watch.pair == ("healthy", "ok")


def test_what_fades_after_one_pause_is_no_pace() -> None:
    """A bar smooths its rate: it stays high for a while, and falls row by row."""
    watch = Watching()
    form = "{:.2f}s/it]"
    for step in range(1, 60):
        watch.line(f" 10%|# | {step}/2000 [00:10<01:00, " + form.format(0.5), after_s=0.5)
    for row in range(9):
        watch.line(f" 10%|# | {60 + row}/2000 [00:10<01:00, " + form.format(60 * 0.7**row + 0.5), after_s=0.5)
        assert watch.pair == ("healthy", "ok")


def test_an_evaluation_under_a_bar_without_a_name_is_no_slow_step() -> None:
    watch = Watching()
    for step in range(1, 120):
        watch.line(f" 10%|# | {step}/2000 [00:10<01:00, 0.50s/it]", after_s=0.5)
    for batch in range(40):
        watch.line(f" 10%|# | {batch}/128 [00:10<01:00, 4.00s/it]", after_s=4.0)
        assert watch.pair == ("healthy", "ok")
    assert watch.verdict.step == 119


BAR = " 10%|# | {}/{} [00:10<01:00, 0.50s/it]"


def test_a_bar_that_outlives_a_full_one_is_the_trainings() -> None:
    """The next epoch may be shorter or longer."""
    watch = Watching()
    for num_steps in (20, 30):
        for step in range(1, num_steps + 1):
            watch.line(BAR.format(step, num_steps), after_s=0.5)
    assert (watch.verdict.step, watch.verdict.num_steps) == (30, 30)


def test_a_longer_evaluation_early_in_a_run_is_not_the_training() -> None:
    watch = Watching()
    for num_rows, num_steps in ((20, 2000), (60, 128)):
        for step in range(1, num_rows + 1):
            watch.line(BAR.format(step, num_steps), after_s=0.5)
    assert (watch.verdict.step, watch.verdict.num_steps) == (20, 2000)


def test_a_bar_that_goes_on_past_a_loss_is_the_trainings() -> None:
    """What came before it counted something else, though it was the first."""
    watch = Watching()
    for step in range(1, 5):
        watch.line(BAR.format(step, 10), after_s=0.5)
    watch.line(BAR.format(1, 2000), after_s=0.5)
    assert watch.verdict.num_steps == 10
    watch.line("{'loss': 2.5, 'grad_norm': 1.0}", after_s=0.5)
    watch.line(BAR.format(2, 2000), after_s=0.5)
    assert (watch.verdict.step, watch.verdict.num_steps) == (2, 2000)


def _pace(times: list[float]) -> Pace:
    pace = Pace()
    for number, seconds in enumerate(times, 1):
        pace.observe(seconds, number)
    return pace


def test_a_few_quick_rows_among_slow_ones_are_not_the_runs_best_pace() -> None:
    assert _pace([3.0] * 20 + [1.0] * 12).best_s == 3.0
    assert _pace([1.0] * 32).best_s == 1.0


@pytest.mark.parametrize(("newest", "slowdown"), [([2.0] * 8, 2.0), ([2.0, 3.0] * 4, 1.0)])
def test_rows_that_differ_much_must_be_slow_for_longer(newest: list[float], slowdown: float) -> None:
    assert _pace([1.0] * 20 + newest).slowdown(None) == slowdown
