"""Eager fallback: torch's words and counters weighed against speed, memory's shape against the run's own baseline."""

from __future__ import annotations

import pytest

from opsctl.records.baseline import Baseline
from tests.unit.detect.test_memory import SAW
from tests.unit.detect.watching import Watching, gpu

LIMIT = (
    "W0412 08:11:02.110000 731 torch/_dynamo/convert_frame.py:1994] [0/8] torch._dynamo hit config.recompile_limit (8)"
)
UNFUSED = "UserWarning: flex_attention called without torch.compile() - this will use an unfused implementation"


def warm(watch: Watching, number: int = 40, every_s: float = 0.4) -> None:
    """A compiled run at its pace, memory flat."""
    for step in range(1, number + 1):
        watch.line(f"step {step} loss 2.0", after_s=every_s)
        watch.sample(gpu(used=30210.0), after_s=0.0)


def test_words_then_slow_steps() -> None:
    watch = Watching(compile_expected=True)
    warm(watch)
    watch.line(LIMIT)
    watch.steps(10, first=41, every_s=2.0)
    assert watch.pair == ("eager_fallback", "recompile_limit")
    assert watch.verdict.confidence >= 0.8
    assert "recompile_limit" in watch.causes()


def test_words_and_the_same_pace_as_before_are_nothing() -> None:
    watch = Watching(compile_expected=True)
    warm(watch)
    watch.line(LIMIT)
    watch.steps(10, first=41, every_s=0.4)
    assert watch.pair == ("healthy", "ok")


def test_words_without_anything_to_compare_with_are_believed_a_little() -> None:
    watch = Watching()
    watch.steps(8)
    watch.line(LIMIT)
    watch.steps(10, first=9)
    assert watch.pair == ("eager_fallback", "recompile_limit")
    assert watch.verdict.confidence < 0.8


def test_a_job_that_is_not_meant_to_be_compiled_cannot_fall_back() -> None:
    watch = Watching(compile_expected=False)
    watch.steps(8)
    watch.line(UNFUSED)
    watch.steps(10, first=9)
    assert watch.pair == ("healthy", "ok")


@pytest.mark.parametrize(("breaks", "verdict"), [(2, "healthy"), (30, "eager_fallback")])
def test_a_few_graph_breaks_are_normal_a_storm_is_not(breaks: int, verdict: str) -> None:
    watch = Watching(compile_expected=True)
    for number in range(breaks):
        watch.line(f"V0412 08:11:02.1 7 torch/x.py:44] [{number}/0] Graph break in user code at /srv/net.py:{number}")
    watch.steps(30)
    assert watch.pair[0] == verdict


def test_memory_that_was_flat_and_swings_in_slow_steps_needs_no_words() -> None:
    watch = Watching(compile_expected=True)
    warm(watch)
    for step, used in enumerate(SAW * 2, start=41):
        watch.line(f"step {step} loss 2.0", after_s=2.0)
        watch.sample(gpu(used=float(used), util=85, power=400), after_s=0.0)
    assert watch.pair == ("eager_fallback", "memory_sawtooth")
    told = " ".join(watch.verdict.evidence)
    assert "swings" in told
    assert "flat before" in told
    assert "times what it should" in told


def test_memory_that_varies_with_the_batches_at_an_even_pace_is_healthy() -> None:
    watch = Watching(compile_expected=True)
    for step, used in enumerate(SAW * 3, start=1):
        watch.line(f"step {step} loss 2.0", after_s=1.0)
        watch.sample(gpu(used=float(used)), after_s=0.0)
    assert watch.pair == ("healthy", "ok")


def test_one_gpu_of_eight_is_enough() -> None:
    watch = Watching(compile_expected=True)
    for step in range(1, 41):
        watch.line(f"step {step} loss 2.0", after_s=0.4)
        watch.sample(*(gpu(index) for index in range(8)), after_s=0.0)
    for step, used in enumerate(SAW * 2, start=41):
        watch.line(f"step {step} loss 2.0", after_s=2.0)
        watch.sample(*(gpu(index, used=float(used) if index == 5 else 40000.0) for index in range(8)), after_s=0.0)
    assert watch.pair == ("eager_fallback", "memory_sawtooth")
    assert "GPU 5" in watch.verdict.evidence[0]


def test_counters_that_rise_after_warm_up() -> None:
    watch = Watching()
    for step in range(1, 61):
        watch.now += 1
        watch.metrics(step=step, loss=2.0, graph_breaks=max(0, step - 40), recompiles=3)
    assert watch.pair == ("eager_fallback", "graph_break")
    assert "graph_breaks" in watch.verdict.evidence[0]


def test_counters_of_the_warm_up_itself_are_nothing() -> None:
    watch = Watching()
    for step in range(1, 61):
        watch.now += 1
        watch.metrics(step=step, loss=2.0, graph_breaks=min(step, 5), recompiles=min(step, 7), compiles=min(step, 9))
    assert watch.pair == ("healthy", "ok")


def test_lost_cuda_graphs_are_degraded_not_eager() -> None:
    watch = Watching(compile_expected=True, cudagraphs_expected=True)
    watch.line("skipping cudagraphs due to mutated inputs (2 instances). Found from :")
    watch.steps(20)
    assert watch.pair == ("degraded", "cudagraph_skipped")


def test_one_recompile_after_warm_up_is_a_finding_that_says_what_was_lost() -> None:
    watch = Watching(compile_expected=True)
    for step in range(1, 31):
        watch.metrics(step=step, loss=2.0, recompiles=1 if step < 25 else 2, cudagraph_skips=0)
    (found,) = watch.findings
    assert (found.cause, found.severity, found.summary.split(":")[0]) == ("recompiled", "warning", "compilation lost")
    assert "from 1 to 2" in found.evidence[0]
    watch.metrics(step=31, loss=2.0, recompiles=2, cudagraph_skips=4)
    assert watch.findings[-1].summary == "CUDA graphs lost: CUDA graphs are not used"


def test_recompiles_while_a_run_warms_up_are_no_finding() -> None:
    watch = Watching(compile_expected=True)
    for step in range(1, 15):
        watch.metrics(step=step, loss=2.0, recompiles=step)
    assert watch.findings == []


@pytest.mark.parametrize(("expected", "causes"), [(True, ["cold_start"]), (False, [])])
def test_a_cold_start_is_a_finding_where_a_warm_one_was_expected(expected: bool, causes: list[str]) -> None:
    watch = Watching(compile_expected=True, warm_expected=expected)
    watch.metrics(phase="compile", step=0, fx_hits=3, fx_misses=2, aot_misses=0, compiler_starts=1)
    watch.metrics(phase="compile", step=0, fx_hits=3, fx_misses=2, aot_misses=0, compiler_starts=1)
    assert [finding.cause for finding in watch.findings] == causes
    if expected:
        assert watch.findings[0].evidence == ("the run was expected to start warm: fx_misses 2, compiler_starts 1",)
        assert "cache explain" in watch.findings[0].advice


def test_a_warm_start_is_no_finding() -> None:
    watch = Watching(compile_expected=True, warm_expected=True)
    watch.metrics(phase="compile", step=0, fx_hits=5, fx_misses=0, aot_misses=0, compiler_starts=0)
    assert watch.findings == []


@pytest.mark.parametrize(
    ("swing_mib", "pair"),
    [(0.0, ("eager_fallback", "memory_sawtooth")), (40000.0, ("healthy", "ok")), (None, ("healthy", "ok"))],
)
def test_a_sawtooth_is_judged_by_how_flat_a_good_run_was(swing_mib: float | None, pair: tuple[str, str]) -> None:
    watch = Watching(compile_expected=True, baseline=Baseline(used_mib=60000.0, swing_mib=swing_mib))
    for step, used in enumerate(SAW * 3, 1):
        watch.line(f"step {step} loss 2.0" if step < 3 else f"saved sample {step}", after_s=1.0)
        watch.sample(gpu(used=used), after_s=1.0)
    watch.line("step 3 loss 2.0")
    assert watch.pair == pair
