"""One rank of the topology of processes: cold at once with the others in an empty cache, then warm at once."""

from __future__ import annotations

from dataclasses import asdict

import torch

from trainer.compile import CompileError
from trainer.compile.torch_log import LimitsHit
from trainer.preflight.releases import known
from trainer.preflight.replica import WARM_S, ReplicaRun, process_counts
from trainer.preflight.report import Counts, together
from trainer.rank_reports import leave_report
from trainer.ranks import Ranks, join
from trainer.recipe import Recipe
from trainer.warmup import open_discipline


def preflight_rank(recipe: Recipe, device: torch.device) -> int:
    """Compile at once with the other ranks, seal, run warm at once with them, and leave the counts."""
    ranks = join(device.type)
    leave_report(ranks.rank, {"counts": asdict(_run(recipe, device, ranks)), "known": known(torch.__version__)})
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
