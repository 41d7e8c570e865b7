"""What a run tells while it runs: `metrics.jsonl` for programs, a line now and then on stdout for people.

Each line of the file is one JSON object, flushed as written. A line is also written when a phase begins, so that a
watcher knows what a quiet run is busy with.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import torch

if TYPE_CHECKING:
    from trainer.compile import Counters


def say(text: str) -> None:
    """Print one line for people, at once."""
    print(text, flush=True)


def unheard(text: str) -> None:
    """Say nothing: rank 0 talks for all."""


class MetricsFile:
    """Appends to a JSON-lines file; every line carries the time, the phase, the step and the number of steps."""

    def __init__(self, path: Path, *, num_steps: int) -> None:
        self.num_steps = num_steps
        self.phase = "start"
        self.step = 0
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> MetricsFile:
        self._file = self._path.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def begin(self, phase: str, **values: Any) -> None:
        """Write that a phase begins; later lines carry its name."""
        self.phase = phase
        self.write(**values)

    def write(self, **values: Any) -> None:
        """Append one line; values given replace those every line carries, numbers that are not finite become null."""
        line = {"time": round(time.time(), 3), "phase": self.phase, "step": self.step, "num_steps": self.num_steps}
        assert self._file is not None, "the metrics file is not open"
        self._file.write(json.dumps(line | {name: _plain(value) for name, value in values.items()}) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def compile_fields(counters: Counters) -> dict[str, int]:
    """Return the counters that every step's line carries."""
    return {
        "compiles": counters.num_compiled,
        "recompiles": counters.recompiles,
        "graph_breaks": counters.graph_breaks,
        "cudagraph_skips": counters.cudagraph_skips,
    }


def memory_allocated_mib(device: torch.device) -> float:
    """Return what this process holds: torch's allocated bytes on a GPU, the resident set on the CPU."""
    if device.type == "cuda":
        return round(torch.cuda.memory_allocated(device) / 2**20, 1)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def step_line(step: int, num_steps: int, values: Mapping[str, float | None]) -> str:
    """Return the line for people: step, loss, length of accepted drafts, speed, rate and gradient norm.

    >>> step_line(40, 200, {"loss": 3.21, "accept_len": 1.5, "tokens_per_s": 12300.0, "lr": 6e-4, "grad_norm": 0.9})
    'step 40/200  loss 3.210  accept 1.50  12.3k tok/s  lr 6.0e-04  grad 0.90'
    """
    parts = [f"step {step}/{num_steps}", _part("loss {:.3f}", values.get("loss"))]
    parts += [_part("accept {:.2f}", values.get("accept_len")), _speed(values.get("tokens_per_s"))]
    parts += [_part("lr {:.1e}", values.get("lr")), _part("grad {:.2f}", values.get("grad_norm"))]
    return "  ".join(part for part in parts if part)


def _part(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _speed(tokens_per_s: float | None) -> str:
    if tokens_per_s is None:
        return ""
    return f"{tokens_per_s / 1000:.1f}k tok/s" if tokens_per_s >= 1000 else f"{tokens_per_s:.0f} tok/s"
