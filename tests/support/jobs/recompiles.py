"""A small torch job whose batches all have another shape: dynamo reaches its limit and falls back to eager."""

from __future__ import annotations

import argparse
import time

import torch


def score(hidden_TH: torch.Tensor, weight_HH: torch.Tensor) -> torch.Tensor:
    """What the job compiles."""
    return torch.nn.functional.gelu(hidden_TH @ weight_HH).sum()


def main() -> None:
    """Compile for the first shapes, run eagerly after the limit, and say nothing of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-s", type=float, default=0.05)
    arguments = parser.parse_args()
    # the backend is the trivial one: the limit is dynamo's own and the same with every backend
    compiled = torch.compile(score, dynamic=False, backend="eager")
    weight_HH = torch.eye(8)
    for step in range(1, arguments.steps + 1):
        loss = float(compiled(torch.ones(step, 8), weight_HH))
        print(f"step {step}/{arguments.steps} loss={loss:.4f}", flush=True)
        time.sleep(arguments.step_s)


if __name__ == "__main__":
    main()
