"""How a run ended, as `result.json` in the run directory: written once, atomically, however it ended."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer.errors import EXIT_FINISHED, EXIT_STOPPED
from trainer.files import write_json

FILE_NAME = "result.json"
Status = Literal["running", "finished", "stopped", "failed"]


@dataclass
class Result:
    """The figures of one run, filled in as it goes; what never came to be stays null."""

    name: str
    num_steps: int
    status: Status = "running"
    cause: str | None = None
    exit_code: int | None = None
    phase: str | None = None
    steps: int = 0
    resumed_from: str | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    tau_before: float | None = None
    tau_after: float | None = None
    tau_not_looping: float | None = None
    lookup_tau: float | None = None
    lookup_tau_not_looping: float | None = None
    looping_share: float | None = None
    tokens: int = 0
    tokens_per_s: float | None = None
    compile_s: float | None = None
    seconds: float | None = None
    checkpoint: str | None = None
    counters: dict[str, int] = field(default_factory=dict)

    def finish(self) -> None:
        """Note that the run did all its steps."""
        self.status, self.exit_code = "finished", EXIT_FINISHED

    def stop(self, cause: str) -> None:
        """Note that the run was asked to stop and can go on later."""
        self.status, self.cause, self.exit_code = "stopped", cause, EXIT_STOPPED

    def fail(self, error: BaseException, exit_code: int) -> None:
        """Note what ended the run."""
        self.status, self.exit_code = "failed", exit_code
        self.cause = f"{type(error).__name__}: {error}"

    def write(self, folder: Path) -> Path:
        """Write the result into `folder` and return its path."""
        path = folder / FILE_NAME
        write_json(path, {"schema": 1, **{name: _plain(value) for name, value in asdict(self).items()}})
        return path


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
