"""Compiles every compiled function of a recipe into the cache folders of the environment, and says how warm it was.

It needs neither prepared data nor a verifier's weights: made-up inputs of the recipe's shapes compile the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.cache_key import cache_key
from trainer.compile import Discipline
from trainer.device import resolve_device
from trainer.endings import outcome
from trainer.model import Drafter
from trainer.rank_reports import gather_reports, leave_report
from trainer.ranks import WARM_TIMEOUT_S, Ranks, join
from trainer.recipe import Recipe
from trainer.warmth import CompilerCount, Warmth, binaries_in, cache_folders, total
from trainer.warmup import compile_step, open_discipline, warm_step


@dataclass(frozen=True)
class PrewarmReport:
    """What a prewarm did, and where; of several ranks, in order, rank 0 compiled and the others loaded."""

    recipe: str
    functions: tuple[str, ...]
    cache_dirs: tuple[str, ...]
    threads: int
    ranks: tuple[Warmth, ...]

    @property
    def warmth(self) -> Warmth:
        """The counts of all ranks together."""
        return total(self.ranks)

    @property
    def others_loaded(self) -> bool:
        """True if every rank but the first found all that the first left in the cache."""
        return all(one.is_warm for one in self.ranks[1:])

    def as_dict(self) -> dict[str, Any]:
        """Return the report as one JSON document."""
        return {
            "schema": 1,
            "recipe": self.recipe,
            **self.warmth.as_dict(),
            "functions": list(self.functions),
            "cache_dirs": list(self.cache_dirs),
            "threads": self.threads,
            "others_loaded": self.others_loaded,
            "ranks": [one.as_dict() for one in self.ranks],
            "cache_key": cache_key(),
        }

    def lines(self) -> list[str]:
        """Return the report for people."""
        lines = [f"warmed {len(self.functions)} functions forward and backward: {', '.join(self.functions)}"]
        for rank, one in enumerate(self.ranks):
            lines += _lines(one, f"rank {rank}: " if len(self.ranks) > 1 else "", self.cache_dirs)
        return lines


def _lines(warmth: Warmth, who: str, cache_dirs: tuple[str, ...]) -> list[str]:
    c = warmth.counters
    return [
        f"{who}FX graph cache: {c.fx_hits} hits, {c.fx_misses} misses, {c.fx_bypasses} bypassed",
        f"{who}AOTAutograd cache: {c.aot_hits} hits, {c.aot_misses} misses, {c.aot_bypasses} bypassed",
        f"{who}compilers started: {warmth.compiler_starts}, workers for Triton: {warmth.worker_starts}, "
        f"new binaries: {warmth.new_binaries}",
        f"{who}{'warm' if warmth.is_warm else 'cold'} start of {warmth.seconds:.1f} s in {', '.join(cache_dirs)}",
    ]


def prewarm(recipe: Recipe, *, say: Callable[[str], None], ranks: Ranks | None = None) -> PrewarmReport:
    """Compile, or load, all compiled functions of the recipe and seal them; raises CompileError or ConfigError.

    Rank 0 does so first, so that the others find it done. `say` hears the name of each function when its turn comes: a
    cold start takes minutes.
    """
    ranks = ranks or Ranks()
    device = resolve_device(recipe.device)
    who = f"{ranks.name}: " if ranks.name else ""
    with ranks.node_leader_first("warming the compile cache", timeout_s=WARM_TIMEOUT_S):
        discipline = open_discipline(
            recipe.compile,
            device,
            replica=ranks.name,
            on_compile=lambda name: say(f"{who}compiling or loading {name}"),
        )
        warmth = _warm(recipe, device, discipline)
        discipline.close()
    functions, folders = tuple(one.name for one in discipline.functions.values()), tuple(map(str, cache_folders()))
    return PrewarmReport(recipe.name, functions, folders, torch.get_num_threads(), (warmth,))


def _warm(recipe: Recipe, device: torch.device, discipline: Discipline) -> Warmth:
    """Warm and seal the recipe's functions, and measure what it took."""
    config, shape = recipe.drafter_config(), recipe.step_shape(device)
    folders = cache_folders()
    before = binaries_in(folders)
    started_at = time.monotonic()
    with CompilerCount() as compilers:
        functions = compile_step(config, device, discipline)
        warm_step(Drafter(config).to(device), functions, shape, device)
        discipline.seal()
        return Warmth(
            counters=discipline.verify(),
            compiler_starts=compilers.started,
            new_binaries=len(binaries_in(folders) - before),
            seconds=round(time.monotonic() - started_at, 2),
            worker_starts=compilers.num_workers,
        )


def prewarm_rank(recipe: Recipe, *, say: Callable[[str], None]) -> int:
    """Prewarm as one of several ranks, and leave the report where the launcher looks for it."""
    ranks = join(resolve_device(recipe.device).type)
    report = prewarm(recipe, say=say, ranks=ranks)
    leave_report(ranks.rank, report.as_dict())
    ranks.close()
    return 0


def prewarm_ranks(words: Sequence[str], *, num_ranks: int, uses_gpus: bool) -> tuple[int, PrewarmReport | None]:
    """Run `python -m trainer prewarm WORD...` as several ranks; return the exit status and the report of all.

    There is no report where a rank failed; what it said is on its stderr.
    """
    launched, found = gather_reports(("prewarm", *words), num_ranks=num_ranks, uses_gpus=uses_gpus)
    status, _ = outcome(launched.endings, stopped_by=launched.stopped_by)
    if status:
        return status, None
    reports = [one for one in found if one is not None]  # all of them: without one a rank has not finished
    warmths = tuple(Warmth.from_dict(one) for one in reports)
    first = reports[0]
    names, folders = tuple(first["functions"]), tuple(first["cache_dirs"])
    return 0, PrewarmReport(first["recipe"], names, folders, first["threads"], warmths)
