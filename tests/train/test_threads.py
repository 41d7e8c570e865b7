"""Replicas in threads: a compiled copy each, warmed in turn, sealed together, and no miss however they run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch import Tensor

from tests.train.commands import environment
from trainer.compile import CompileError, Discipline, Replica, SealBroken, SwitchRefused, ThreadedReplicas, needs_lock

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ROOT = Path(__file__).parents[2]
NUM_REPLICAS, NUM_LENGTHS, NUM_CALLS = 3, 4, 300


def loss_of(x: Tensor) -> Tensor:
    return torch.tanh(x).square().mean()


def input_of(length: int) -> Tensor:
    return torch.ones(length, requires_grad=True)


@pytest.fixture
def replicas() -> Iterator[ThreadedReplicas]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    made = ThreadedReplicas(NUM_REPLICAS, Discipline(backend="aot_eager"), lock="off")
    yield made
    made.close()


def in_threads(replicas: ThreadedReplicas, work: Callable[[Replica], None]) -> list[Future[None]]:
    """Run `work` in a thread a replica; their futures, done."""

    def one(index: int) -> None:
        with replicas.joined(index) as replica:
            work(replica)

    with ThreadPoolExecutor(NUM_REPLICAS) as pool:
        return [pool.submit(one, index) for index in range(NUM_REPLICAS)]


def test_several_lengths_in_threads_without_a_lock_miss_nothing(replicas: ThreadedReplicas) -> None:
    def work(replica: Replica) -> None:
        lengths = range(3, 3 + NUM_LENGTHS)
        compiled = {length: replica.guard(loss_of, name=f"loss_{length}") for length in lengths}
        for length in lengths:
            replica.warm(compiled[length], input_of(length))
        replica.seal()
        for call in range(NUM_CALLS):
            length = 3 + call % NUM_LENGTHS
            with replica.step():
                compiled[length](input_of(length)).backward()

    for future in in_threads(replicas, work):
        future.result()
    counters = replicas.counters()
    assert (counters.compiles, counters.recompiles) == (NUM_REPLICAS * NUM_LENGTHS, 0)
    assert counters.lazy_backwards == NUM_REPLICAS * NUM_LENGTHS


def test_a_broken_seal_names_the_replica(replicas: ThreadedReplicas) -> None:
    def work(replica: Replica) -> None:
        compiled = replica.guard(loss_of)
        replica.warm(compiled, input_of(3))
        replica.seal()
        compiled(input_of(4 if replica.index == 1 else 3))

    futures = in_threads(replicas, work)
    assert [future.exception() for future in (futures[0], futures[2])] == [None, None]
    with pytest.raises(SealBroken, match=r"broken in loss_of of replica 1: compiled again: .*expected 3, actual 4"):
        futures[1].result()


def test_a_replica_that_fails_before_the_seal_leaves_nobody_waiting(replicas: ThreadedReplicas) -> None:
    def work(replica: Replica) -> None:
        if replica.index == 2:
            raise ValueError("no data")
        replica.seal()

    futures = in_threads(replicas, work)
    with pytest.raises(ValueError, match="no data"):
        futures[2].result()
    for future in futures[:2]:
        with pytest.raises(CompileError, match="another replica failed before all were warm"):
            future.result()


def test_all_replicas_hear_why_the_seal_failed(replicas: ThreadedReplicas) -> None:
    def work(replica: Replica) -> None:
        compiled = replica.guard(loss_of)
        if replica.index != 1:
            replica.warm(compiled, input_of(3))
        replica.seal()

    for future in in_threads(replicas, work):
        with pytest.raises(SealBroken, match="in loss_of of replica 1: it was added but never run"):
            future.result()


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch's configuration is per thread from 2.13 on")
def test_a_switch_that_only_one_thread_sees_is_refused_there(replicas: ThreadedReplicas) -> None:
    def one() -> None:
        torch._dynamo.config.suppress_errors = True
        with replicas.joined(0):
            pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(SwitchRefused, match="suppress_errors=True"):
        pool.submit(one).result()
    assert torch._dynamo.config.suppress_errors is False


def test_the_lock_is_held_over_a_step_where_this_torch_needs_it() -> None:
    assert needs_lock("2.13.0+cpu")
    assert needs_lock("2.9.1")
    assert not needs_lock("2.14.1+cu130")
    locked = ThreadedReplicas(1, Discipline(backend="aot_eager"), lock="on")
    order: list[str] = []

    def other() -> None:
        with locked.turn:
            order.append("other")

    with locked.joined(0) as replica, replica.step():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        order.append("step")
    thread.join()
    locked.close()
    assert order == ["step", "other"]
    free = ThreadedReplicas(1, Discipline(backend="aot_eager"))
    free.close()
    assert free.is_locked == needs_lock()


def test_the_example_trains_three_replicas_and_compiles_each_once(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "examples" / "threads.py")]
    done = subprocess.run(
        words, env=environment(tmp_path, ROOT / "trainer"), capture_output=True, text=True, timeout=560
    )
    assert done.returncode == 0, done.stderr
    assert "3 compiled, 0 again, 0 graph breaks" in done.stdout
    losses = [float(word.strip("[],")) for word in done.stdout.split(", lock")[0].split()[1:]]
    assert len(losses) == 3
    assert max(losses) < 0.1


@pytest.mark.slow
@pytest.mark.long
def test_ten_cold_starts_at_once_as_processes_and_as_threads_fail_nowhere(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "compile_race.py"), "--starts", "10", "--wave", "5"]
    environ = environment(tmp_path, ROOT / "trainer")
    words += ["--backend", "aot_eager", "--json"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    processes, threads, unprotected = json.loads(done.stdout)
    for one in (processes, threads):
        assert (one["starts"], one["failures"], one["recompiles"], one["errors"]) == (10, 0, 0, [])
        assert one["warm_calls"] == 500
    assert unprotected["recompiles"] > 0
