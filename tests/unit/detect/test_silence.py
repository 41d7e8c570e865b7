"""Silence by the clock: stalled, hung, and the patience of each phase."""

from __future__ import annotations

import pytest

from opsctl.detect import watcher
from tests.unit.detect.watching import Watching, gpu


def _hung_after(seconds: float) -> Watching:
    """A run that stepped every second and has been silent for so long."""
    watch = Watching()
    watch.steps(40)
    watch.ticks(seconds)
    assert watch.pair[0] == "hung"
    return watch


def test_a_run_is_starting_until_its_first_step() -> None:
    watch = Watching()
    assert watch.pair == ("starting", "ok")
    watch.line("loading weights")
    assert watch.pair == ("starting", "ok")
    watch.steps(1)
    assert watch.pair == ("healthy", "ok")


def test_silence_is_a_finding_after_three_steps_and_five_seconds_and_hung_after_a_minute() -> None:
    watch = Watching()
    watch.steps(40)
    watch.ticks(7)
    assert watch.findings == []
    watch.ticks(3)
    assert watch.causes() == ["stalled"]
    assert watch.pair == ("healthy", "ok")
    watch.ticks(52)
    assert watch.pair == ("hung", "cause_unknown")
    assert watch.causes() == ["stalled", "cause_unknown"]


def test_patience_grows_with_the_runs_own_pace() -> None:
    watch = Watching()
    watch.steps(30, every_s=20.0)
    watch.ticks(190, every_s=5)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(20, every_s=5)
    assert watch.pair[0] == "hung"


def test_patience_is_learned_from_the_rows_not_from_the_steps_they_report() -> None:
    """A row every 50 steps of 0.6 s: half a minute without a row is nothing."""
    watch = Watching()
    for row in range(1, 20):
        watch.line(f"step {row * 50} loss 2.0 | 0.6 s/step", after_s=30.0)
    watch.ticks(80)
    assert watch.findings == []


def test_a_pause_that_was_survived_may_last_as_long_again() -> None:
    """A checkpoint that nobody announces, say: it is told once and not at every later one."""
    watch = _hung_after(99)
    watch.steps(300, first=41)
    watch.ticks(120)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(50)
    assert watch.pair[0] == "hung"


def test_a_step_ends_the_alarm_and_a_second_silence_is_told_again() -> None:
    watch = _hung_after(70)
    watch.steps(1, first=41)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(70)
    assert watch.causes().count("stalled") == 2


def test_a_long_first_compile_is_no_alarm_while_the_processor_works() -> None:
    watch = Watching(compile_expected=True)
    watch.line("compiling the train step (max-autotune) ...")
    for second in range(0, 3000, 5):
        watch.sample(gpu(util=0.0, power=90.0), after_s=5.0, states="SR", cpu_s=second * 8.0)
        assert watch.pair == ("starting", "compile_warmup")
    assert watch.findings == []


def test_a_compile_without_any_work_is_hung_in_the_end() -> None:
    watch = Watching(compile_expected=True)
    watch.line("compiling the train step (max-autotune) ...")
    for _ in range(0, 1900, 10):
        watch.sample(gpu(util=0.0, power=90.0), after_s=10.0, states="S", cpu_s=4.0)
    assert watch.pair == ("hung", "compile_hang")


@pytest.mark.parametrize(
    "row", ["***** Running Evaluation *****", "Saving model checkpoint to out/step-40", "validating ..."]
)
def test_evaluation_and_checkpoints_have_their_own_patience(row: str) -> None:
    watch = Watching()
    watch.steps(40)
    watch.line(row, after_s=1.0)
    watch.ticks(500, every_s=5)
    assert watch.pair == ("healthy", "ok")
    assert "cause_unknown" not in watch.causes()
    watch.ticks(200, every_s=5)
    assert watch.pair[0] == "hung"


def test_a_pause_for_evaluation_is_not_learned_as_the_pace() -> None:
    watch = Watching()
    watch.steps(30)
    for first in (31, 61, 91):
        watch.line("Running evaluation ...", after_s=1.0)
        watch.ticks(200, every_s=10)
        watch.steps(30, first=first)
    watch.ticks(70)
    assert watch.pair[0] == "hung"


def test_phases_of_the_metrics_file_count() -> None:
    watch = Watching()
    watch.metrics(phase="compile", step=0)
    for second in range(0, 1200, 10):
        watch.sample(after_s=10.0, states="R", cpu_s=float(second))
    assert watch.pair[0] == "starting"
    for step in range(1, 30):
        watch.now += 1
        watch.metrics(phase="train", step=step, num_steps=100, loss=2.0, tokens=512 * step, tokens_per_s=512.0)
    verdict = watch.verdict
    assert (verdict.verdict, verdict.step, verdict.num_steps, verdict.loss) == ("healthy", 29, 100, 2.0)
    assert (verdict.tokens_per_s, verdict.step_s, verdict.phase) == (512.0, 1.0, "train")
    watch.metrics(phase="eval")
    watch.ticks(300, every_s=5)
    assert watch.pair == ("healthy", "ok")


def test_rows_that_go_on_without_steps_earn_more_patience() -> None:
    watch = Watching()
    watch.steps(40)
    for number in range(120):
        watch.line(f"sample {number}: something is generated", after_s=2.0)
    assert watch.pair == ("healthy", "ok")


def test_gpus_at_full_power_earn_more_patience_than_silence_alone() -> None:
    watch = Watching()
    watch.steps(40)
    for _ in range(240):
        watch.sample(gpu(util=96.0, power=620.0), after_s=0.5)
    assert watch.pair == ("healthy", "ok")


def test_full_utilisation_at_low_power_is_told_before_any_time_limit() -> None:
    watch = Watching()
    for step in range(1, 40):
        watch.line(f"step {step} loss 2.0", after_s=1.0)
        watch.sample(gpu(0), gpu(1), after_s=0.0)
    for _ in range(24):
        watch.sample(gpu(0, util=100, power=110), gpu(1, util=100, power=112), after_s=0.5)
    assert watch.pair == ("hung", "nccl_hang")
    assert any("110 W" in row or "112 W" in row for row in watch.verdict.evidence)


def test_one_idle_gpu_beside_spinning_ones_is_the_rank_that_left() -> None:
    watch = Watching()
    for step in range(1, 40):
        watch.line(f"step {step} loss 2.0", after_s=1.0)
        watch.sample(gpu(0), gpu(1), after_s=0.0)
    for _ in range(24):
        watch.sample(gpu(0, util=100, power=110), gpu(1, util=0, power=70), after_s=0.5)
    assert watch.pair == ("hung", "rank_desync")


def test_a_stopped_process_is_hung_within_a_few_seconds_and_lives_again() -> None:
    watch = Watching()
    watch.steps(10)
    watch.sample(states="RSS", cpu_s=1.0)
    for _ in range(8):
        watch.sample(states="TTT", cpu_s=1.0)
    assert watch.pair == ("hung", "cause_unknown")
    assert "state T" in watch.verdict.evidence[0]
    watch.sample(states="RSS", cpu_s=1.2)
    assert watch.pair == ("healthy", "ok")


def test_a_glimpse_of_state_t_is_nothing() -> None:
    watch = Watching()
    watch.steps(10)
    watch.sample(states="T", cpu_s=1.0)
    watch.sample(states="R", cpu_s=1.1)
    assert watch.findings == []


def test_work_that_is_done_and_a_process_that_stays() -> None:
    watch = Watching()
    watch.steps(40)
    watch.line("training finished")
    watch.ticks(50)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(20)
    assert watch.pair == ("hung", "exit_hang")


def test_a_logger_that_retries_is_named_when_no_step_follows() -> None:
    watch = Watching()
    watch.steps(40)
    watch.line("wandb: Network error (ReadTimeout), entering retry loop.")
    watch.ticks(70)
    assert watch.pair == ("hung", "logger_blocked")
    watch.steps(3, first=41)
    assert watch.pair == ("healthy", "ok")


@pytest.mark.parametrize(
    "row", ["Finished training epoch 3 in 12:01", "fold 2: training finished", "done with training the tokenizer"]
)
def test_a_part_that_is_done_is_not_the_work(row: str) -> None:
    watch = Watching()
    watch.steps(40)
    watch.line(row)
    watch.line("validating ...")
    watch.ticks(120)
    assert watch.pair == ("healthy", "ok")


def test_a_last_evaluation_that_works_on_the_processor_gets_more_time() -> None:
    watch = Watching()
    watch.steps(40)
    watch.line("training finished")
    for second in range(200):
        watch.sample(after_s=1.0, states="R", cpu_s=second * 2.0)
    assert watch.pair == ("healthy", "ok")


def test_the_rate_fades_once_steps_stop() -> None:
    watch = Watching()
    watch.steps(40, every_s=0.2)
    assert watch.verdict.step_s == pytest.approx(0.2)
    watch.ticks(28)
    found = watch.verdict
    assert (found.verdict, found.step_s) == ("healthy", pytest.approx(28, rel=0.05))
    assert found.evidence[0].startswith("no step for 28 s")


def test_silence_alone_has_the_advice_of_a_hang() -> None:
    watch = Watching()
    watch.steps(40, every_s=0.2)
    watch.ticks(90)
    assert watch.pair == ("hung", "cause_unknown")
    assert "py-spy" in watch.verdict.advice
    assert watch.findings[-1].summary == "hung: the reason is out of view"


def test_a_job_without_a_step_says_so() -> None:
    watch = Watching()
    watch.ticks(300, every_s=10)
    assert (watch.pair, watch.verdict.evidence) == (("starting", "ok"), ("no step seen yet",))


def test_the_moment_is_known_at_which_silence_alone_says_something() -> None:
    watch = Watching()
    watch.steps(40)
    watch.tick(7.5)
    turn_s = watcher.turns_in_s(watch.state)
    assert turn_s == pytest.approx(0.5)  # three steps of a second and five
    watch.tick(0.49)
    assert watch.findings == []
    watch.tick(0.02)
    assert watch.causes() == ["stalled"]
    turn_s = watcher.turns_in_s(watch.state)
    assert turn_s == pytest.approx(60 - 8.01)
    watch.end(exit_code=0)
    assert watcher.turns_in_s(watch.state) is None


@pytest.mark.parametrize(("num_steps", "limit_s"), [(1, 600), (5, 180)])
def test_silence_before_the_pace_is_known_is_long(num_steps: int, limit_s: float) -> None:
    """Steps may take minutes: after the first of them nobody knows, and after a few hardly."""
    watch = Watching()
    watch.steps(num_steps)
    watch.ticks(limit_s - 10, every_s=5)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(20, every_s=5)
    assert watch.pair[0] == "hung"


@pytest.mark.parametrize(
    "row",
    [
        "***** Running Prediction *****",
        "INFO generating 64 samples",
        "computing FID over 10000 images",
        "Running the test set",
        "Saving current state to out/checkpoint-500",
        "Gathering full state dict on rank 0",
        "Uploading checkpoint to s3://bucket/x",
        "[1/3] nvcc -c fused.cu",
        "recompiling for sequence length 8192",
        "epoch 3: shuffling data",
        "Fast-forwarding the data to step 5000",
    ],
)
def test_what_a_job_says_it_does_explains_some_minutes_of_silence(row: str) -> None:
    watch = Watching()
    watch.steps(30)
    watch.line(row)
    watch.ticks(300, every_s=20)
    assert watch.pair == ("healthy", "ok")
    watch.steps(5, first=31)
    watch.ticks(100, every_s=20)
    assert watch.pair == ("hung", "cause_unknown")
