"""A trainer whose replicas are threads of one process, made safe by trainer.compile: the lines marked # safe.

`python examples/threads.py [BACKEND]` trains three small replicas at once on the CPU and prints what was compiled. The
backend `aot_eager` takes seconds; `inductor`, which a real trainer wants, builds C++ first. Without those lines threads
share compiled code, which torch does not make safe: see docs/compile.md.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from trainer.compile import CompileError, Discipline, ThreadedReplicas

NUM_REPLICAS, NUM_STEPS, ROWS, WIDTH = 3, 200, 16, 32


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The function that every replica compiles."""
    return torch.nn.functional.mse_loss(model(x), y)


def train(index: int, model: nn.Module, replicas: ThreadedReplicas) -> float:
    """Train one replica on data of its own; return its last loss."""
    generator = torch.Generator().manual_seed(index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with replicas.joined(index) as replica:  # safe: this thread's switches and configuration
        compiled = replica.guard(loss_of)  # safe: a code object of its own
        replica.warm(compiled, model, torch.zeros(ROWS, WIDTH), torch.zeros(ROWS, 1))  # safe: in turn, both ways
        replica.seal()  # safe: all are warm, nothing may compile from here on
        for _ in range(NUM_STEPS):
            x = torch.randn(ROWS, WIDTH, generator=generator)
            with replica.step():  # safe: a lock where this torch needs one; a broken seal ends the run
                loss = compiled(model, x, x[:, :1].sin())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return float(loss.detach())


def main(backend: str = "aot_eager") -> int:
    """Train all replicas; return 4 where the compile discipline was broken."""
    replicas = ThreadedReplicas(NUM_REPLICAS, Discipline(backend=backend))  # safe
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)) for _ in range(NUM_REPLICAS)]
    with ThreadPoolExecutor(NUM_REPLICAS) as pool:
        runs = [pool.submit(train, index, model, replicas) for index, model in enumerate(models)]
    counters = replicas.counters()
    replicas.close()
    try:
        losses = [round(run.result(), 4) for run in runs]
    except CompileError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"losses {losses}, lock {'on' if replicas.is_locked else 'off'}")
    print(f"{counters.compiles} compiled, {counters.recompiles} again, {counters.graph_breaks} graph breaks")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
