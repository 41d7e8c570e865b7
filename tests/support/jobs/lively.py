"""A healthy job with all that looks alarming: evaluation, checkpoints, batches of varying length, a noisy log.

Usage: lively.py [--seconds S] [--step-s S] [--eval-every N] [--save-every N] [--varying] [--noisy]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import traceback
from pathlib import Path

NOISE = (
    "INFO errors so far: 0, failed batches: 0, retries: 0",
    "WARNING cache miss for shard 12 (Traceback logging is off)",
    "INFO loaded 3 error-correction pairs; failed_samples=0",
    "/srv/x.py:12: FutureWarning: this will raise an error in a future release",
    "W1102 10:00:00.1 4242 torch/_inductor/utils.py:1250] [0/0] Not enough SMs to use max_autotune_gemm mode",
    "sample: except RuntimeError: print('CUDA error: out of memory')",
    "NCCL INFO Failed to open libibverbs.so[.1]",
    "wandb: WARNING Fatal error while uploading data. Some run data will not be synced, but training goes on",
)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--varying", action="store_true")
    parser.add_argument("--noisy", action="store_true")
    return parser.parse_args()


def pause(name: str, seconds: float) -> None:
    """Evaluate or save: no steps, few words."""
    print(f"{name} ...", flush=True)
    time.sleep(seconds)
    print(f"{name} done in {seconds:.1f} s", flush=True)


def make_noise(dice: random.Random) -> None:
    """One harmless row that reads badly, or a caught exception with its traceback."""
    if dice.random() < 0.2:
        try:
            raise ValueError("image 77 is truncated, skipped")
        except ValueError:
            traceback.print_exc()
    print(dice.choice(NOISE), flush=True)


def main() -> None:
    """Step until the time is over."""
    options, dice, step = parsed(), random.Random(7), 0
    end = time.monotonic() + options.seconds
    with Path("metrics.jsonl").open("w", buffering=1) as metrics:
        while time.monotonic() < end:
            step += 1
            time.sleep(options.step_s * (dice.uniform(0.4, 1.6) if options.varying else 1.0))
            loss = 4.0 / (1 + step / 200) + 0.1 * math.sin(step) + dice.gauss(0, 0.02)
            print(f"step {step}/1000000 | loss {loss:.4f} | tokens/s {dice.randint(20000, 40000)}", flush=True)
            metrics.write(json.dumps({"time": time.time(), "step": step, "loss": loss, "phase": "train"}) + "\n")
            if options.noisy and step % 7 == 0:
                make_noise(dice)
            if options.eval_every and step % options.eval_every == 0:
                pause("evaluating on the validation set", 3 + 20 * options.step_s)
            if options.save_every and step % options.save_every == 0:
                pause("saving checkpoint", 1 + 10 * options.step_s)
    print("training finished", flush=True)


if __name__ == "__main__":
    main()
