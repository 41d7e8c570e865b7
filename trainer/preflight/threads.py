"""The topology of threads: as trainer.compile makes them safe, without its lock, and sharing code to compare."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from trainer.compile import CompileError, Lock, Replica, ThreadedReplicas
from trainer.compile.torch_log import LimitsHit
from trainer.preflight.replica import WARM_S, ReplicaRun, process_counts
from trainer.preflight.report import Counts, Topology, together
from trainer.recipe import Recipe
from trainer.warmup import open_discipline

T = TypeVar("T")
NUM_SHARED_ENTRIES, NUM_SHARED_CALLS = 8, 8000


def try_threads(recipe: Recipe, device: torch.device, *, num_replicas: int, lock: Lock) -> list[Topology]:
    """Run the recipe's step in threads; the first topology is the chosen one, then the same without its lock."""
    discipline = open_discipline(recipe.compile, device)
    replicas = ThreadedReplicas(num_replicas, discipline, lock=lock)
    found = []
    try:
        with LimitsHit() as limits:
            runs = _cold(recipe, device, replicas)
            after_cold, limits_cold = discipline.counters(), limits.num
            rounds = (
                [replicas.is_locked, False] if replicas.is_locked and discipline.is_sealed else [replicas.is_locked]
            )
            for is_locked in rounds:
                before, limits_before = discipline.counters(), limits.num
                _warm(runs, replicas, is_locked=is_locked)
                name = f"threads, a compiled copy each, lock {'on' if is_locked else 'off'}"
                limits_hit = limits_cold + limits.num - limits_before
                of_process = process_counts(after_cold, before, discipline.counters(), limits_hit=limits_hit)
                counts = together([of_process, *(run.counts() for run in runs)])
                found.append(Topology(name, num_replicas, counts, is_chosen=is_locked == replicas.is_locked))
    finally:
        replicas.close()
    return found


def _cold(recipe: Recipe, device: torch.device, replicas: ThreadedReplicas) -> list[ReplicaRun]:
    """Compile in every thread, in turn, and seal."""

    def work(index: int) -> ReplicaRun:
        with replicas.joined(index) as replica:
            return _compile(recipe, _device_of(device, index), replica, replicas)

    return _in_threads(work, replicas.num_replicas)


def _compile(recipe: Recipe, device: torch.device, replica: Replica, replicas: ThreadedReplicas) -> ReplicaRun:
    run = ReplicaRun(recipe, device, lambda name, function: replica.guard(function, name=name))
    with replicas.turn:
        run.cold()
    try:
        replica.seal()
    except CompileError as error:
        run.note(error)
    return run


def _device_of(device: torch.device, index: int) -> torch.device:
    return torch.device("cuda", index % torch.cuda.device_count()) if device.type == "cuda" else device


def _warm(runs: list[ReplicaRun], replicas: ThreadedReplicas, *, is_locked: bool) -> None:
    """Run all replicas at once for a while."""
    _in_threads(
        lambda index: runs[index].warm(WARM_S, hold=(lambda: replicas.turn) if is_locked else nullcontext), len(runs)
    )


def try_shared_code(num_threads: int, *, is_chosen: bool) -> Topology:
    """Have threads share one compiled function with several warm entries, as unprotected pipelines do."""
    torch._dynamo.reset()
    compiled = torch.compile(_shared, backend="aot_eager", dynamic=False)
    inputs = [torch.ones(3 + index) for index in range(NUM_SHARED_ENTRIES)]
    for one in inputs:
        compiled(one)
    misses: Counter[str] = Counter()
    started_at = time.monotonic()
    with torch.compiler.set_stance("fail_on_recompile"), _eager_to_switch():
        for part in _in_threads(lambda index: _call_all(compiled, inputs, index), num_threads):
            misses.update(part)
    counts = Counts(
        calls=num_threads * NUM_SHARED_CALLS,
        compiles=NUM_SHARED_ENTRIES,
        spurious_recompiles=misses.pop("miss", 0),
        exceptions=dict(misses),
        warm_s=round(time.monotonic() - started_at, 2),
    )
    return Topology("threads that share compiled code, unprotected", num_threads, counts, is_chosen=is_chosen)


@contextmanager
def _eager_to_switch() -> Iterator[None]:
    """Have the interpreter switch threads often, so that seconds show what a run meets in hours."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _shared(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def _call_all(compiled: Callable[[Tensor], Tensor], inputs: list[Tensor], index: int) -> Counter[str]:
    """Call with inputs that are all warm; count what is raised, a miss of a warm entry by that name."""
    found: Counter[str] = Counter()
    for call in range(NUM_SHARED_CALLS):
        try:
            compiled(inputs[(call + index) % len(inputs)])
        except RuntimeError as error:
            found["miss" if "Detected recompile" in str(error) else type(error).__name__] += 1
    return found


def _in_threads(work: Callable[[int], T], num_threads: int) -> list[T]:
    """Run `work(index)` in that many threads, which begin at once; return what they gave."""
    together_now = threading.Barrier(num_threads)

    def begin(index: int) -> T:
        together_now.wait()
        return work(index)

    with ThreadPoolExecutor(num_threads) as pool:
        return [future.result() for future in [pool.submit(begin, index) for index in range(num_threads)]]
