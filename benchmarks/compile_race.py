"""Compile race: cold starts of replicas at once, as processes and as threads, and calls of all of them once warm.

Promise: 0 failures of 100 cold starts each, 0 recompiles after the warm-up. Beside it, threads that nobody protects.
`python benchmarks/compile_race.py [--starts 100] [--wave 10] [--backend inductor] [--json]`; 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.compile import Discipline, Replica, ThreadedReplicas
from trainer.preflight.threads import try_shared_code

NUM_WARM_CALLS = 50
SHAPE = (2, 2, 16, 8)  # rows, heads, positions, head size


@dataclass
class Tally:
    """What the starts of one topology came to."""

    topology: str
    starts: int = 0
    failures: int = 0
    recompiles: int = 0
    warm_calls: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one start."""
        self.starts += 1
        self.failures += outcome.error is not None
        self.recompiles += outcome.recompiles
        self.warm_calls += outcome.warm_calls
        if outcome.error:
            self.errors.append(outcome.error)


@dataclass(frozen=True)
class Outcome:
    """What one cold start came to."""

    warm_calls: int = 0
    recompiles: int = 0
    error: str | None = None


def attention_loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A small attention block whose backward is compiled too."""
    return F.scaled_dot_product_attention(query, key, value).tanh().square().mean()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs that need gradients, of the one shape."""
    query, key, value = (torch.ones(SHAPE, requires_grad=True) for _ in range(3))
    return query, key, value


def start_process(backend: str, cache: str, begin: Barrier, outcomes: Any) -> None:
    """One replica that is a process: it compiles at the same moment as the others of its wave, into one cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    try:
        discipline = Discipline(backend=backend)
        run = discipline.guard(attention_loss)
        begin.wait()
        run.warm(*inputs())
        discipline.seal()
        warm = discipline.counters().num_compiled
        for _ in range(NUM_WARM_CALLS):
            run(*inputs()).backward()
        outcomes.put(Outcome(NUM_WARM_CALLS, discipline.verify().num_compiled - warm))
    except BaseException as error:  # noqa: BLE001 - whatever ends a start is what is counted
        begin.abort()
        outcomes.put(Outcome(error=f"{type(error).__name__}: {error}"))


def wave_of_processes(size: int, backend: str) -> list[Outcome]:
    """Start that many processes at once, with one empty cache."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch._dynamo", "torch._inductor.compile_fx", "trainer.preflight.threads"])
    begin, outcomes = server.Barrier(size), server.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="compile-race-") as cache:
        processes = [server.Process(target=start_process, args=(backend, cache, begin, outcomes)) for _ in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = [outcomes.get() for process in processes if not outcomes.empty() or process.exitcode == 0]
    died = [Outcome(error=f"ended with status {process.exitcode}") for process in processes if process.exitcode]
    return found + died


def start_threads(size: int, backend: str, cache: str, outcomes: Any) -> None:
    """One process whose replicas are threads that start cold at once."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    replicas = ThreadedReplicas(size, Discipline(backend=backend))

    def work(replica: Replica) -> Outcome:
        run = replica.guard(attention_loss)
        replica.warm(run, *inputs())
        replica.seal()
        warm = replicas.counters().num_compiled
        for _ in range(NUM_WARM_CALLS):
            with replica.step():
                run(*inputs()).backward()
        return Outcome(NUM_WARM_CALLS, replicas.counters().num_compiled - warm)

    def start(index: int) -> Outcome:
        try:
            with replicas.joined(index) as replica:
                return work(replica)
        except BaseException as error:  # noqa: BLE001 - whatever ends a start is what is counted
            return Outcome(error=f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(size) as pool:
        for outcome in pool.map(start, range(size)):
            outcomes.put(outcome)


def wave_of_threads(size: int, backend: str) -> list[Outcome]:
    """Start that many threads at once, in a fresh process with an empty cache."""
    server = multiprocessing.get_context("forkserver")
    outcomes = server.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="compile-race-") as cache:
        process = server.Process(target=start_threads, args=(size, backend, cache, outcomes))
        process.start()
        process.join()
        if process.exitcode:
            return [Outcome(error=f"ended with status {process.exitcode}") for _ in range(size)]
        return [outcomes.get() for _ in range(size)]


def race(topology: str, wave: Callable[[int, str], list[Outcome]], *, starts: int, size: int, backend: str) -> Tally:
    """Run waves until there were that many cold starts."""
    tally, began = Tally(topology), time.monotonic()
    while tally.starts < starts:
        for outcome in wave(min(size, starts - tally.starts), backend):
            tally.add(outcome)
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


def unprotected(num_threads: int) -> Tally:
    """Threads that share one compiled function with several warm entries: the misses that they see."""
    topology = try_shared_code(num_threads, is_chosen=False)
    counts = topology.counts
    return Tally(topology.name, num_threads, 0, counts.spurious_recompiles, counts.calls, counts.warm_s)


def main() -> int:
    """Print one row a topology; return 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=100)
    parser.add_argument("--wave", type=int, default=10)
    parser.add_argument("--backend", choices=("inductor", "aot_eager"), default="inductor")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"expected: 0 failures of {options.starts} cold starts each, 0 recompiles of what is warm", flush=True)
    sizes = {"starts": options.starts, "size": options.wave, "backend": options.backend}
    tallies = [race("processes", wave_of_processes, **sizes), race("threads", wave_of_threads, **sizes)]
    beside = unprotected(3)
    if options.json:
        print(json.dumps([asdict(one) for one in (*tallies, beside)]))
    else:
        for one in (*tallies, beside):
            print(
                f"{one.topology}: {one.failures} failures of {one.starts} cold starts, {one.recompiles} recompiles in "
                f"{one.warm_calls} warm calls, {one.seconds:.1f} s"
            )
            for text in sorted(set(one.errors)):
                print(f"  {text}")
    return 1 if any(one.failures or one.recompiles for one in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
