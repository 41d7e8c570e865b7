"""Preflight: real replicas of the tiny recipe, and what their counts amount to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.commands import run
from trainer.preflight.preflight import knows_vectors
from trainer.preflight.replica import MAX_FAILED, ReplicaRun, small_copy
from trainer.preflight.report import Counts, PreflightReport, Topology, counts_from, together
from trainer.recipe import load_recipe


def report_of(*topologies: Topology) -> PreflightReport:
    return PreflightReport("tiny", "2.13.0", "cpu", "threads", topologies, ("a fact",), 12.3)


@pytest.mark.long
def test_processes_compile_at_once_and_run_warm_without_a_miss(tiny_recipe: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run("preflight", str(tiny_recipe), "--nproc", "2", "--result", str(result), cache=tmp_path / "unused")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text(encoding="utf-8"))
    (row,) = found["topologies"]
    assert (found["safe"], row["replicas"], row["exceptions"]) == (True, 2, {})
    assert row["compiles"] == 2 * 5  # three forwards and two backwards, in each process
    assert row["spurious_recompiles"] == row["eager_calls"] == row["limits_hit"] == 0
    assert row["calls"] > 2 * 3
    assert not list((tmp_path / "unused").rglob("*.so"))  # the run's own cache is neither used nor filled


@pytest.mark.slow
@pytest.mark.long
def test_threads_with_a_copy_each_miss_nothing_with_and_without_the_lock(tiny_recipe: Path, tmp_path: Path) -> None:
    words = ("preflight", str(tiny_recipe), "--replicas", "threads", "--nproc", "3", "--lock", "on", "--json")
    done = run(*words, cache=tmp_path / "unused")
    assert done.returncode == 0, done.stdout + done.stderr
    locked, free, shared = json.loads(done.stdout)["topologies"]
    assert [one["chosen"] for one in (locked, free, shared)] == [True, False, False]
    for one in (locked, free):
        assert (one["exceptions"], one["spurious_recompiles"], one["eager_calls"]) == ({}, 0, 0)
        assert one["calls"] > 3 * 3
    assert shared["spurious_recompiles"] > 0


@pytest.mark.slow
def test_threads_that_share_compiled_code_are_unsafe(tiny_recipe: Path, tmp_path: Path) -> None:
    done = run("preflight", str(tiny_recipe), "--replicas", "shared-threads", "--nproc", "3", cache=tmp_path / "c")
    assert done.returncode == 1
    assert "spurious recompiles" in done.stdout
    assert "UNSAFE after" in done.stdout


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        (Counts(calls=9), None),
        (Counts(), "no warm call was made"),
        (Counts(calls=9, exceptions={"InductorError": 2}), "2 InductorError"),
        (Counts(calls=9, exceptions={"A": 2}, messages={"A": "why\nmore", "B": "else"}), "2 A: why"),
        (Counts(calls=9, spurious_recompiles=3), "3 spurious recompiles"),
        (Counts(calls=9, eager_calls=1), "1 eager calls"),
        (Counts(calls=9, limits_hit=1), "1 limits hit"),
        (Counts(calls=9, cudagraph_skips=1), "1 cudagraph skips"),
    ],
)
def test_only_the_chosen_topology_decides(counts: Counts, problem: str | None) -> None:
    assert counts.problems() == ([problem] if problem else [])
    assert report_of(Topology("chosen", 2, counts)).problems == ([f"chosen: {problem}"] if problem else [])
    beside = report_of(Topology("chosen", 2, Counts(calls=1)), Topology("beside", 2, counts, is_chosen=False))
    assert beside.problems == []
    assert beside.lines()[-1] == "safe after 12 s"
    assert beside.as_dict()["topologies"][1]["safe"] is (problem is None)


def test_what_a_replica_raises_is_counted_and_told(tiny_recipe: Path) -> None:
    def no_kernel(*_: Any) -> Any:
        raise ValueError("no kernel here")

    run = ReplicaRun(load_recipe(tiny_recipe, []), torch.device("cpu"), lambda name, function: no_kernel)
    run.warm(60.0)
    counts = together([Counts(), run.counts()])
    assert (counts.calls, counts.problems()) == (MAX_FAILED, [f"{MAX_FAILED} ValueError: no kernel here"])


def test_a_round_does_not_carry_the_failures_of_the_round_before(tiny_recipe: Path) -> None:
    broken = {"yes"}

    def sometimes(name: str, function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            if broken:
                raise ValueError(name)
            return function(*arguments)

        return called

    run = ReplicaRun(load_recipe(tiny_recipe, []), torch.device("cpu"), sometimes)
    run.warm(60.0)
    assert run.counts().exceptions == {"ValueError": MAX_FAILED}
    broken.clear()
    run.warm(0.5)
    counts = run.counts()
    assert counts.calls > 0
    assert (counts.exceptions, counts.messages) == ({}, {})


@pytest.mark.parametrize(("compiler", "knows"), [("true", True), ("false", False), ("no-such-compiler", False)])
def test_only_a_compiler_that_takes_the_flags_knows_the_vectors(compiler: str, knows: bool) -> None:
    assert knows_vectors(compiler) is knows


def test_counts_of_replicas_add_up_and_times_are_the_longest() -> None:
    one = Counts(calls=3, exceptions={"A": 1}, compiles=5, cold_s=2.0, warm_s=1.0)
    other = Counts(calls=4, exceptions={"A": 1, "B": 2}, eager_calls=1, cold_s=3.0, warm_s=0.5)
    whole = together([one, other])
    assert whole == Counts(7, {"A": 2, "B": 2}, 5, 0, 1, 0, 0, 3.0, 1.0)
    assert counts_from(json.loads(json.dumps(whole.__dict__))) == whole


def test_the_small_copy_keeps_kinds_heads_and_what_is_guarded(tiny_recipe: Path) -> None:
    config = load_recipe(
        tiny_recipe,
        [
            "drafter.num_layers=3",
            "drafter.sliding_window=8",
            "drafter.layer_types=[sliding_attention, full_attention, sliding_attention]",
        ],
    ).drafter_config()
    small = small_copy(config)
    assert small.layer_types == ("full_attention", "sliding_attention")
    assert (small.block_size, small.head_dim, small.sliding_window) == (config.block_size, config.head_dim, 8)
    assert small.num_attention_heads // small.num_key_value_heads == 2
    assert small.mask_token_id < small.vocab_size
