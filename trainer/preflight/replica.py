"""One replica of a preflight: a small copy of the recipe's drafter at the recipe's shapes, run cold and warm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from trainer.attention import attention_form
from trainer.compile import Counters, SealBroken
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.preflight.report import Counts
from trainer.recipe import Recipe
from trainer.step import step_functions
from trainer.warmup import warm_step

MAX_FAILED = 20
_SMALL = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 1024}

Guard = Callable[[str, Callable[..., Any]], Callable[..., Any]]


def small_copy(config: DrafterConfig) -> DrafterConfig:
    """Return the config with one layer a kind and small widths; what is compiled differs in sizes alone."""
    small = {name: min(size, getattr(config, name)) for name, size in _SMALL.items()}
    group = config.num_attention_heads // config.num_key_value_heads
    return replace(
        config,
        **small,
        num_hidden_layers=len(config.kinds),
        layer_types=config.kinds,
        num_key_value_heads=1,
        num_attention_heads=group,
        mask_token_id=small["vocab_size"] - 1,
    )


class ReplicaRun:
    """The step of one replica; counts what was called, raised, and run without having been compiled."""

    def __init__(self, recipe: Recipe, device: torch.device, guard: Guard) -> None:
        self.device = device
        self._shape = recipe.step_shape(device)
        config = small_copy(recipe.drafter_config())
        self._drafter = Drafter(config).to(device)
        self._eager: list[str] = []
        self._guard = guard
        self._functions = step_functions(config, attention_form(device), wrap=self._wrap)
        self.calls = 0
        self.misses = 0  # of what was warm: the inputs are the same in every step
        self.exceptions: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self.cold_s = self.warm_s = 0.0

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        eager = self._eager

        def called(*arguments: Any) -> Any:
            if not torch.compiler.is_compiling():  # a constant to the compiler: in compiled code nothing is left of it
                eager.append(name)
            return function(*arguments)

        compiled = self._guard(name, called)

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            return compiled(*arguments)

        return counted

    def cold(self) -> None:
        """Run the step once, forward and backward, which compiles all of it."""
        started_at = time.monotonic()
        self._step()
        self.cold_s = round(time.monotonic() - started_at, 2)
        self.calls = 0

    def warm(self, seconds: float, *, hold: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """Run warm steps for that long, each within `hold()`; a replica that only fails gives up."""
        started_at = time.monotonic()
        while time.monotonic() - started_at < seconds and self._num_failed < MAX_FAILED:
            self._step(hold=hold)
        self.warm_s = round(time.monotonic() - started_at, 2)

    @property
    def _num_failed(self) -> int:
        return self.misses + sum(self.exceptions.values())

    def _step(self, *, hold: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        try:
            with hold():
                warm_step(self._drafter, self._functions, self._shape, self.device)
        except SealBroken as error:
            self.misses += 1
            self.messages.setdefault(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - whatever this torch raises in this topology is what is asked for
            self.note(error)

    def note(self, error: Exception) -> None:
        """Count an exception by its type, and keep what the first one of a type says."""
        kind = type(error).__name__
        self.exceptions[kind] += 1
        self.messages.setdefault(kind, str(error))

    def counts(self) -> Counts:
        """Return what this replica did, beside what is counted for its whole process."""
        return Counts(
            calls=self.calls,
            exceptions=dict(self.exceptions),
            spurious_recompiles=self.misses,
            eager_calls=len(self._eager),
            cold_s=self.cold_s,
            warm_s=self.warm_s,
            messages=dict(self.messages),
        )


def process_counts(now: Counters, after_cold: Counters, *, limits_hit: int) -> Counts:
    """Return what a process compiled for all its replicas together; whatever it did once they were cold is a miss."""
    return Counts(
        compiles=now.num_compiled,
        spurious_recompiles=after_cold.recompiles + now.num_compiled - after_cold.num_compiled,
        limits_hit=limits_hit,
        cudagraph_skips=now.cudagraph_skips,
    )
