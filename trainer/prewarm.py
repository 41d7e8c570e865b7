"""Compiles every compiled function of a recipe into the cache folders of the environment, and says how warm it was.

It needs neither prepared data nor a verifier's weights: made-up inputs of the recipe's shapes compile the same code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.cache_key import cache_key
from trainer.compile import Discipline
from trainer.device import resolve_device
from trainer.model import Drafter
from trainer.recipe import Recipe
from trainer.warmth import CompilerCount, Warmth, binaries_in, cache_folders
from trainer.warmup import compile_step, warm_step


@dataclass(frozen=True)
class PrewarmReport:
    """What a prewarm did, and where."""

    recipe: str
    functions: tuple[str, ...]
    cache_dirs: tuple[str, ...]
    warmth: Warmth

    def as_dict(self) -> dict[str, Any]:
        """Return the report as one JSON document."""
        return {
            "schema": 1,
            "recipe": self.recipe,
            **self.warmth.as_dict(),
            "functions": list(self.functions),
            "cache_dirs": list(self.cache_dirs),
            "threads": torch.get_num_threads(),
            "cache_key": cache_key(),
        }

    def lines(self) -> list[str]:
        """Return the report for people."""
        warmth, c = self.warmth, self.warmth.counters
        return [
            f"warmed {len(self.functions)} functions forward and backward: {', '.join(self.functions)}",
            f"FX graph cache: {c.fx_hits} hits, {c.fx_misses} misses, {c.fx_bypasses} bypassed",
            f"AOTAutograd cache: {c.aot_hits} hits, {c.aot_misses} misses, {c.aot_bypasses} bypassed",
            f"compilers started: {warmth.compiler_starts}, new binaries: {warmth.new_binaries}",
            f"{'warm' if warmth.is_warm else 'cold'} start of {warmth.seconds:.1f} s in {', '.join(self.cache_dirs)}",
        ]


def prewarm(recipe: Recipe, *, say: Callable[[str], None]) -> PrewarmReport:
    """Compile, or load, all compiled functions of the recipe and seal them; raises CompileError or ConfigError.

    `say` hears the name of each function when its turn comes: a cold start takes minutes.
    """
    device = resolve_device(recipe.device)
    config, shape = recipe.drafter_config(), recipe.step_shape(device)
    discipline = Discipline(device.type, on_compile=lambda name: say(f"compiling or loading {name}"))
    folders = [*cache_folders()]
    before = binaries_in(folders)
    started_at = time.monotonic()
    with CompilerCount() as compilers:
        functions = compile_step(config, device, discipline)
        warm_step(Drafter(config).to(device), functions, shape, device)
        discipline.seal()
        warmth = Warmth(
            counters=discipline.verify(),
            compiler_starts=compilers.started,
            new_binaries=len(binaries_in(folders) - before),
            seconds=round(time.monotonic() - started_at, 2),
        )
    discipline.close()
    return PrewarmReport(recipe.name, tuple(discipline.functions), tuple(map(str, folders)), warmth)
