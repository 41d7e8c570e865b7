"""How a run ended: each rank writes `result.<rank>.json`, once, atomically, and rank 0 `result.json` for the run.

Where there are several ranks the launcher writes `result.json` anew from what all of them say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer.endings import Ending
from trainer.errors import EXIT_FINISHED, EXIT_STOPPED
from trainer.files import read_json, write_json

FILE_NAME = "result.json"
Status = Literal["running", "finished", "stopped", "failed"]
_STATUS: dict[int, Status] = {EXIT_FINISHED: "finished", EXIT_STOPPED: "stopped"}


def rank_file(rank: int) -> str:
    """Return the name of a rank's own result."""
    return f"result.{rank}.json"


@dataclass
class Result:
    """The figures of one rank's run, filled in as it goes; what never came to be stays null."""

    name: str
    num_steps: int
    rank: int = 0
    ranks: int = 1
    status: Status = "running"
    cause: str | None = None
    error: str | None = None
    exit_code: int | None = None
    ended_at: float | None = None
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
        self._end("finished", None, EXIT_FINISHED)

    def stop(self, cause: str) -> None:
        """Note that the run was asked to stop and can go on later."""
        self._end("stopped", cause, EXIT_STOPPED)

    def fail(self, error: BaseException, exit_code: int) -> None:
        """Note what ended the run."""
        self.error = type(error).__name__
        self._end("failed", f"{self.error}: {error}", exit_code)

    def _end(self, status: Status, cause: str | None, exit_code: int) -> None:
        self.status, self.cause, self.exit_code, self.ended_at = status, cause, exit_code, time.time()

    @property
    def message(self) -> str:
        """What ended the run, without the name of the exception."""
        return (self.cause or "").removeprefix(f"{self.error}: ")

    def write(self, folder: Path) -> Path:
        """Write the rank's result into `folder`, on rank 0 the run's too; return the rank's path."""
        document = {"schema": 1, **{name: _plain(value) for name, value in asdict(self).items()}}
        path = folder / rank_file(self.rank)
        write_json(path, document)
        if self.rank == 0:
            write_json(folder / FILE_NAME, document)
        return path


def write_run_result(folder: Path, endings: Sequence[Ending], exit_code: int, failure: Ending | None) -> None:
    """Write `result.json` of a run of several ranks: rank 0's figures, the run's own end, and each rank's."""
    figures = read_json(folder / rank_file(0)) or {"schema": 1}
    status: Status = _STATUS.get(exit_code, "failed")
    cause = failure.cause if failure else next((one.cause for one in endings if one.status == exit_code), "")
    rows = [{"rank": one.rank, "exit_code": one.status, "cause": one.cause or None} for one in endings]
    own = {"status": status, "exit_code": exit_code, "cause": cause or None, "rank": failure.rank if failure else None}
    write_json(folder / FILE_NAME, figures | own | {"ranks": len(endings), "endings": rows})


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
