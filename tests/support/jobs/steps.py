"""A small job that steps: writes rows to its log and to metrics.jsonl, and ends as it is told.

Usage: steps.py [--steps N] [--step-s S] [--until FILE] [--then finish|raise] [--checkpoint] [--caught]
       [--import MODULE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--until", default="", help="end once this file is there")
    parser.add_argument("--then", choices=["finish", "raise"], default="finish")
    parser.add_argument(
        "--caught", action="store_true", help="raise and catch an error in the middle, with its traceback"
    )
    parser.add_argument("--checkpoint", action="store_true", help="SIGTERM saves and exits with 75")
    parser.add_argument("--import", dest="module", default="")
    return parser.parse_args()


def save_and_leave(signum: int, frame: FrameType | None) -> None:
    """What a trainer does on SIGTERM."""
    print("checkpoint saved", flush=True)
    sys.exit(75)


def batch_of(step: int) -> list[int]:
    """The data of one step; some of it cannot be read."""
    raise ValueError(f"no supervised slot in batch {step}")


def one_step(step: int, arguments: argparse.Namespace, metrics_path: str = "metrics.jsonl") -> None:
    """Work a little, and tell of it."""
    time.sleep(arguments.step_s)
    loss = 4.0 / (1.0 + step / 10)
    print(f"step {step}/{arguments.steps} loss={loss:.4f}", flush=True)
    row = {"time": time.time(), "step": step, "num_steps": arguments.steps, "loss": loss, "tokens_per_s": 512.0}
    with open(metrics_path, "a") as file:  # noqa: PTH123 - a job as people write it
        file.write(json.dumps(row) + "\n")
    if arguments.caught and step == 5:
        try:
            batch_of(step)
        except ValueError:
            traceback.print_exc()


def main() -> None:
    """Step, then end as told."""
    arguments = parsed()
    if arguments.checkpoint:
        signal.signal(signal.SIGTERM, save_and_leave)
    if arguments.module:
        importlib.import_module(arguments.module)
    for step in range(1, arguments.steps + 1):
        one_step(step, arguments)
        if arguments.until and Path(arguments.until).exists():
            break
    if arguments.then == "raise":
        batch_of(arguments.steps + 1)
    print("training finished", flush=True)


if __name__ == "__main__":
    main()
