"""The topology of processes: as many ranks as the run has, cold at once in an empty cache, then warm at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from trainer.compile import CompileError
from trainer.compile.torch_log import LimitsHit
from trainer.endings import Ending
from trainer.preflight.replica import ReplicaRun, process_counts
from trainer.preflight.report import Counts, Topology, counts_from, together
from trainer.rank_reports import gather_reports, leave_report
from trainer.ranks import Ranks, join
from trainer.recipe import Recipe
from trainer.warmup import open_discipline

WARM_S = 5.0


def try_processes(words: Sequence[str], *, num_ranks: int, uses_gpus: bool) -> tuple[Topology, str | None]:
    """Run `python -m trainer preflight WORD...` as ranks; return what they saw, and what stopped the launch."""
    launched, reports = gather_reports(("preflight", *words), num_ranks=num_ranks, uses_gpus=uses_gpus)
    parts = [_counts_of(report, one) for report, one in zip(reports, launched.endings, strict=True)]
    return Topology("processes, one a replica", num_ranks, together(parts)), launched.stopped_by


def _counts_of(report: Mapping[str, Any] | None, ending: Ending) -> Counts:
    """Return what a rank left; a rank that left nothing counts as an exception, named by how it ended."""
    if report is not None:
        return counts_from(report["counts"])
    return Counts(exceptions={f"rank {ending.rank} {ending.cause}": 1})


def preflight_rank(recipe: Recipe, device: torch.device) -> int:
    """Compile at once with the other ranks, seal, run warm at once with them, and leave the counts."""
    ranks = join(device.type)
    leave_report(ranks.rank, {"counts": asdict(_run(recipe, device, ranks))})
    ranks.close()
    return 0


def _run(recipe: Recipe, device: torch.device, ranks: Ranks) -> Counts:
    discipline = open_discipline(recipe.compile, device, replica=ranks.name)
    with LimitsHit() as limits:
        run = ReplicaRun(recipe, device, discipline.add)
        ranks.meet()  # so that all compile at once
        run.cold()
        after_cold = discipline.counters()
        try:
            discipline.seal()
        except CompileError as error:
            run.note(error)
        ranks.meet()
        run.warm(WARM_S)
    now = discipline.counters()
    discipline.close()
    return together([process_counts(after_cold, after_cold, now, limits_hit=limits.num), run.counts()])
