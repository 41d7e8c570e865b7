"""One rank's run of a recipe, from its files to its exit status, however it ends.

The run directory is the working directory; it gets recipe.yaml, metrics.jsonl, checkpoints/ and the results.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

from trainer.compile import CompileError, explain_stray
from trainer.config import to_yaml
from trainer.device import resolve_device
from trainer.errors import TrainerError
from trainer.files import write_atomically
from trainer.metrics import MetricsFile, say
from trainer.ranks import PeerLost, Ranks, join
from trainer.recipe import Recipe
from trainer.result import Result
from trainer.signals import StopRequested, StopSignals
from trainer.train import Trainer


def run(recipe: Recipe, *, folder: Path, signals: StopSignals) -> int:
    """Run the recipe in `folder` and return the exit status; the rank's result is written however it ends."""
    ranks = join(resolve_device(recipe.device).type)
    if ranks.is_leader:
        write_atomically(folder / "recipe.yaml", to_yaml(recipe).encode())
    result = Result(name=recipe.name, num_steps=recipe.steps, rank=ranks.rank, ranks=ranks.size)
    started_at = time.monotonic()
    # the leader's metrics stand for all ranks
    path = folder / "metrics.jsonl" if ranks.is_leader else Path(os.devnull)
    with MetricsFile(path, num_steps=recipe.steps) as metrics:
        trainer = Trainer(recipe, folder=folder, signals=signals, metrics=metrics, result=result, ranks=ranks)
        try:
            _run_to_an_end(trainer, result, ranks)
        finally:
            result.seconds = round(time.monotonic() - started_at, 2)
            result.phase, result.counters = metrics.phase, asdict(trainer.counters())
            result.write(folder)
            trainer.close()
            metrics.begin("end", status=result.status, exit_code=result.exit_code)
    ranks.close()
    if ranks.is_leader:
        say(closing_line(result))
    assert result.exit_code is not None
    return result.exit_code


def _run_to_an_end(trainer: Trainer, result: Result, ranks: Ranks) -> None:
    """Run, and note in the result how it ended; what nobody foresaw is noted and raised."""
    try:
        trainer.run()
        trainer.signals.settle()
        result.finish()
    except BaseException as error:
        trainer.signals.settle()  # when a peer is lost the launcher asks to stop, just while the end is written
        try:
            is_foreseen = _note_end(error, trainer, result)
        except BaseException as second:  # the last step could not be kept
            result.fail(second, 1)
            raise
        if not is_foreseen:
            raise
    if result.status == "failed":
        who = f"{result.name}: " if ranks.size == 1 else f"{result.name}: rank {ranks.rank}: "
        say(f"{who}{result.message}")


def _note_end(error: BaseException, trainer: Trainer, result: Result) -> bool:
    """Note what ended a run; return whether it was foreseen."""
    if isinstance(error, StopRequested):
        trainer.keep_last_step()
        result.stop(str(error))
    elif isinstance(error, PeerLost):
        trainer.keep_last_step()  # the others are gone, the last step they shared is not
        result.fail(error, error.exit_code)
    elif isinstance(error, (TrainerError, CompileError)):
        result.fail(error, error.exit_code)
    elif broken := explain_stray(error, replica=trainer.ranks.name):
        result.fail(broken, broken.exit_code)
    else:
        result.fail(error, 1)
        return False
    return True


def closing_line(result: Result) -> str:
    """Return the last line for people."""
    where = f", checkpoint {result.checkpoint}" if result.checkpoint else ""
    why = f" ({result.cause})" if result.status == "stopped" else ""
    return f"{result.name}: {result.status}{why} after step {result.steps}/{result.num_steps}{where}"
