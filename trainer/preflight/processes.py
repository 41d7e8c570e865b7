"""The topology of processes: as many ranks as the run has, cold at once in an empty cache, then warm at once."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer.compile import CompileError
from trainer.compile.torch_log import LimitsHit
from trainer.endings import Ending
from trainer.files import write_json
from trainer.launch import launch
from trainer.preflight.replica import ReplicaRun
from trainer.preflight.report import Counts, Topology, counts_from, together
from trainer.ranks import Ranks, Share, join
from trainer.recipe import Recipe
from trainer.result import rank_file
from trainer.warmup import open_discipline

WARM_S = 5.0
_REPORTS = "TRAINER_PREFLIGHT_REPORTS"  # tells the ranks where to leave what they saw, if not here


def try_processes(words: Sequence[str], *, num_ranks: int, uses_gpus: bool) -> tuple[Topology, str | None]:
    """Run `python -m trainer preflight WORD...` as ranks; return what they saw, and what stopped the launch."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as name:
        folder = Path(name)
        os.environ[_REPORTS] = name
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
        launched = launch(
            ("-m", "trainer", "preflight", *words),
            num_ranks=num_ranks,
            uses_gpus=uses_gpus,
            result_file=lambda rank: folder / rank_file(rank),
        )
        parts = [_counts_of(folder / rank_file(one.rank), one) for one in launched.endings]
    return Topology("processes, one a replica", num_ranks, together(parts)), launched.stopped_by


def _counts_of(path: Path, ending: Ending) -> Counts:
    """Return what a rank wrote; a rank that wrote nothing counts as an exception, named by how it ended."""
    if path.is_file():
        return counts_from(json.loads(path.read_text("utf-8"))["counts"])
    return Counts(exceptions={f"rank {ending.rank} {ending.cause}": 1})


def preflight_rank(recipe: Recipe, device: torch.device) -> int:
    """Compile at once with the other ranks, seal, run warm at once with them, and leave the counts."""
    ranks = join(device.type)
    counts, messages = _run(recipe, device, ranks)
    document: dict[str, Any] = {"counts": asdict(counts), "messages": messages}
    ending = {"exit_code": 0, "error": None, "cause": None, "ended_at": time.time()}
    write_json(Path(os.environ.get(_REPORTS, ".")) / rank_file(ranks.rank), document | ending)
    ranks.close()
    return 0


def _run(recipe: Recipe, device: torch.device, ranks: Ranks) -> tuple[Counts, dict[str, str]]:
    discipline = open_discipline(recipe.compile, device, replica=ranks.name)
    with LimitsHit() as limits:
        run = ReplicaRun(recipe, device, discipline.add)
        ranks.agree(Share(0.0, 0, 0))  # so that all compile at once
        run.cold()
        after_cold = discipline.counters()
        try:
            discipline.seal()
        except CompileError as error:
            run.exceptions[type(error).__name__] += 1
            run.messages[type(error).__name__] = str(error)
        ranks.agree(Share(0.0, 0, 0))
        run.warm(WARM_S)
    now = discipline.counters()
    discipline.close()
    misses = now.compiles + now.lazy_backwards - after_cold.compiles - after_cold.lazy_backwards
    counts = run.counts(
        compiles=now.compiles + now.lazy_backwards,
        recompiles=after_cold.recompiles + misses,
        limits_hit=limits.num,
        cudagraph_skips=now.cudagraph_skips,
    )
    return counts, run.messages
