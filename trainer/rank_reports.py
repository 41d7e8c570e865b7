"""What each rank of `prewarm` and `preflight` leaves for its launcher: one document. Ranks that train leave results."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import EXIT_FINISHED
from trainer.files import read_json, write_json
from trainer.launch import Launched, launch
from trainer.result import rank_file

_FOLDER = "TRAINER_RANK_REPORTS"  # tells the ranks where to leave theirs, if not here


def leave_report(rank: int, document: Mapping[str, Any]) -> None:
    """Write a rank's document where its launcher looks for it; that it stands says that the rank did its work."""
    ending = {"exit_code": EXIT_FINISHED, "error": None, "cause": None, "ended_at": time.time()}
    write_json(Path(os.environ.get(_FOLDER, ".")) / rank_file(rank), {**document, **ending})


def gather_reports(
    words: Sequence[str], *, num_ranks: int, uses_gpus: bool
) -> tuple[Launched, list[dict[str, Any] | None]]:
    """Run `python -m trainer WORD...` as ranks; return how they ended, and by rank what each left (None: nothing)."""
    with tempfile.TemporaryDirectory(prefix="rank-reports-") as name:
        os.environ[_FOLDER] = name
        paths = [Path(name) / rank_file(rank) for rank in range(num_ranks)]
        argv = ("-m", "trainer", *words)
        launched = launch(argv, num_ranks=num_ranks, uses_gpus=uses_gpus, result_file=paths.__getitem__)
        return launched, [read_json(path) for path in paths]
