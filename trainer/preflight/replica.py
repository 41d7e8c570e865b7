"""One replica of a preflight: a small copy of the recipe's drafter at the recipe's shapes, run cold and warm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
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

WARM_S = 3.0  # a round of warm steps
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


@dataclass
class Tally:
    """What a replica did in its cold start, or in one round of warm steps."""

    calls: int = 0
    misses: int = 0  # of what was warm: the inputs are the same in every step
    exceptions: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    eager_calls: int = 0
    seconds: float = 0.0

    @property
    def num_failed(self) -> int:
        """Steps that did not come to an end."""
        return self.misses + sum(self.exceptions.values())

    def note(self, error: Exception) -> None:
        """Count an exception by its type, and keep what the first one of a type says."""
        kind = type(error).__name__
        self.exceptions[kind] += 1
        self.messages.setdefault(kind, str(error))


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
        self._cold = self._tally = Tally()

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        eager = self._eager

        def called(*arguments: Any) -> Any:
            if not torch.compiler.is_compiling():  # a constant to the compiler: in compiled code nothing is left of it
                eager.append(name)
            return function(*arguments)

        compiled = self._guard(name, called)

        def counted(*arguments: Any) -> Any:
            self._tally.calls += 1
            return compiled(*arguments)

        return counted

    def cold(self) -> None:
        """Run the step once, forward and backward, which compiles all of it."""
        with self._timed():
            self._step()

    def warm(self, seconds: float, *, hold: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """Run one round of warm steps for that long, each within `hold()`; a replica that only fails gives up."""
        self._tally = Tally()
        started_at = time.monotonic()
        with self._timed():
            while time.monotonic() - started_at < seconds and self._tally.num_failed < MAX_FAILED:
                self._step(hold=hold)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started_at, num_eager = time.monotonic(), len(self._eager)
        yield
        self._tally.seconds = round(time.monotonic() - started_at, 2)
        self._tally.eager_calls = len(self._eager) - num_eager

    def _step(self, *, hold: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        try:
            with hold():
                warm_step(self._drafter, self._functions, self._shape, self.device)
        except SealBroken as error:
            self._tally.misses += 1
            self._tally.messages.setdefault(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - whatever this torch raises in this topology is what is asked for
            self.note(error)

    def note(self, error: Exception) -> None:
        """Count an exception of the phase that is on."""
        self._tally.note(error)

    def counts(self) -> Counts:
        """Return what the cold start and the last round of warm steps did, beside what a whole process counts."""
        cold, warm = self._cold, self._tally if self._tally is not self._cold else Tally()
        return Counts(
            calls=warm.calls,
            exceptions=dict(cold.exceptions + warm.exceptions),
            spurious_recompiles=cold.misses + warm.misses,
            eager_calls=cold.eager_calls + warm.eager_calls,
            cold_s=cold.seconds,
            warm_s=warm.seconds,
            messages=warm.messages | cold.messages,
        )


def process_counts(after_cold: Counters, before: Counters, after: Counters, *, limits_hit: int) -> Counts:
    """Return what a process compiled for all its replicas: in their cold start, and in a round of warm steps.

    The round lay between `before` and `after`; all that is compiled in it is a miss.
    """
    num_late = after.num_compiled - before.num_compiled
    return Counts(
        compiles=after_cold.num_compiled + num_late,
        spurious_recompiles=after_cold.recompiles + num_late,
        limits_hit=limits_hit,
        cudagraph_skips=after_cold.cudagraph_skips + after.cudagraph_skips - before.cudagraph_skips,
    )
