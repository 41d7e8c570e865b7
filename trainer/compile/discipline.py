"""The discipline of one process: guard, warm, seal, and verify after every step.

What torch does by itself, and what is done about it:
- a code object with several entries loses entries under threads -> one own code object a function, kind and replica;
- a backward is compiled at its first call, unseen by `fail_on_recompile` -> a callback of dynamo refuses it;
- several switches turn errors into silent eager runs -> refused, in every thread that compiles and after every step.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._dynamo import eval_frame
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from trainer.compile.counters import Counters, read_counters
from trainer.compile.errors import COMPILE_IT, UNFUSED_TEXT, UNSET_IT, WARM_BACKWARD, SealBroken
from trainer.compile.guard import Compiled, caller_of, running, uncompiled
from trainer.compile.switches import apply_configuration, compiler_options, refuse_silencers, silencing_switches

SEALED_STANCE = "fail_on_recompile"
_FLEX, _UNFUSED_ID = "torch.nn.attention.flex_attention", "flex_attention_performance"


class Discipline:
    """The guarded functions of one process.

    `on_compile` hears what is about to be compiled, or loaded from the cache, while that takes its time.
    `configuration` holds settings of torch, as {"torch._dynamo.config.recompile_limit": 16}: they are applied in every
    thread that calls a guarded function, since what one thread sets another does not see from torch 2.13 on.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        *,
        backend: str = "inductor",
        cuda_graphs: bool = False,
        configuration: Mapping[str, Any] | None = None,
        replica: str | None = None,
        on_compile: Callable[[str], None] | None = None,
    ) -> None:
        self.backend, self.replica, self.cuda_graphs = backend, replica, cuda_graphs
        inductor_options = compiler_options(device_type, cuda_graphs=cuda_graphs)
        self.options = inductor_options if backend == "inductor" else None
        self.functions: dict[str, Compiled] = {}
        self._configuration = dict(configuration or {})
        self._thread = threading.local()
        self._compiles = self._recompiles = self._lazy_backwards = 0
        self._owner: dict[str, Compiled | None] = {}
        self._tell = on_compile or (lambda _: None)
        self._sealed_at: Counters | None = None
        self.enter_thread()
        # Once a process torch would print this as a warning; the unfused form holds the whole score matrix in memory.
        warnings.filterwarnings("error", message=UNFUSED_TEXT)
        _forget_unfused()
        callback_handler.register_start_callback(self._on_compile)

    @property
    def is_sealed(self) -> bool:
        """True from `seal` to `close`."""
        return self._sealed_at is not None

    def enter_thread(self) -> None:
        """Apply the configuration in the calling thread, once; raises SwitchRefused where it would silence torch."""
        if not getattr(self._thread, "is_entered", False):
            apply_configuration(self._configuration)
            refuse_silencers(os.environ)
            self._thread.is_entered = True

    def guard(
        self, target: Callable[..., Any] | nn.Module, *, name: str | None = None, replica: str | None = None
    ) -> Compiled:
        """Return a compiled copy of a plain function, or of a module's call; a name is used once a replica.

        Kinds that differ in what torch guards on (a window, a shape, a grad mode) need a name of their own each.
        """
        replica = replica or self.replica
        called = name or str(getattr(target, "__name__", type(target).__name__))
        key = f"{called}@{replica}" if replica else called
        if key in self.functions:
            raise ValueError(f"a compiled function called {key} exists already")
        function = caller_of(target) if isinstance(target, nn.Module) else target
        self.functions[key] = Compiled(called, function, self, replica=replica)
        return self.functions[key]

    def add(self, name: str, function: Callable[..., Any]) -> Compiled:
        """Return a compiled copy of a plain function under a name."""
        return self.guard(function, name=name)

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Within it the calling thread runs guarded functions as plain Python, sealed or not."""
        with uncompiled():
            yield

    def begin_step(self) -> None:
        """Tell CUDA graphs that the results of the step before are not needed any more; nothing without them."""
        if self.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # torch gives it no types

    def counters(self) -> Counters:
        """Return what was compiled so far."""
        return read_counters(self._compiles, self._recompiles, self._lazy_backwards)

    def seal(self) -> None:
        """Forbid compiling from here on; raises SealBroken where a function was not warmed, or has several entries."""
        for compiled in self.functions.values():
            if problem := compiled.problem():
                raise problem
        now = self.counters()
        if self.cuda_graphs and now.cudagraph_skips:
            raise self._broken(
                f"CUDA graphs were asked for and skipped {now.cudagraph_skips} times, compilation stands"
            )
        _forget_unfused()
        torch.compiler.set_stance(SEALED_STANCE)
        self._sealed_at = now

    def verify(self) -> Counters:
        """Return the counters; raises SealBroken if since the seal anything was compiled, run unfused or silenced."""
        now = self.counters()
        if self._sealed_at is None:
            return now
        if risen := now.risen_since(self._sealed_at):
            raise self._broken(f"torch compiled after the seal: {', '.join(risen)}{_lost(risen)}", WARM_BACKWARD)
        if _has_run_unfused():
            raise self._broken("flex attention ran unfused, and the warning was swallowed", COMPILE_IT)
        if found := silencing_switches(os.environ):
            raise self._broken(f"errors are suppressed since the seal: {', '.join(found)}", UNSET_IT)
        if eval_frame._stance.stance != SEALED_STANCE:
            raise self._broken(f"somebody lifted the stance {SEALED_STANCE}: {eval_frame._stance.stance}", UNSET_IT)
        return now

    def close(self) -> None:
        """Lift the seal and stop listening; the compiled functions stay usable."""
        if self.is_sealed:
            torch.compiler.set_stance("default")
        self._sealed_at = None
        callback_handler.remove_start_callback(self._on_compile)

    def _broken(self, reason: str, way_out: str = "") -> SealBroken:
        return SealBroken("this process", reason, way_out=way_out, replica=self.replica)

    def _on_compile(self, event: CallbackArgs) -> None:
        self.enter_thread()  # a backward may be compiled by a thread of autograd's own
        frame, again = _frame_of(str(event.compile_id))
        if event.callback_trigger is CallbackTrigger.LAZY_BACKWARD:
            owner = self._owner.get(frame)
            name = owner.name if owner else "an unknown function"
            if self.is_sealed:
                reason = "its backward would be compiled after the seal"
                raise SealBroken(name, reason, way_out=WARM_BACKWARD, replica=owner.replica if owner else None)
            self._lazy_backwards += 1
            self._tell(f"backward of {name}")
        elif event.callback_trigger is CallbackTrigger.DYNAMO:
            self._compiles += 1
            self._recompiles += again
            owner = self._owner[frame] = running()
            self._tell(owner.name if owner else "a function outside the discipline")


def _lost(risen: list[str]) -> str:
    """Return which was lost, where only CUDA graphs were."""
    only_graphs = all(text.startswith("cudagraph_skips") for text in risen)
    return " (CUDA graphs are lost, compilation is not)" if only_graphs else ""


def _frame_of(compile_id: str) -> tuple[str, bool]:
    """Return (frame, whether it was compiled before) of dynamo's id, which ends in FRAME/COUNT."""
    match = re.search(r"(\d+)/(\d+)\D*$", compile_id)
    return (match[1], int(match[2]) > 0) if match else (compile_id, False)


def _forget_unfused() -> None:
    """Have torch warn again: it does so once a process, and the first time may lie before us."""
    getattr(sys.modules.get(_FLEX), "_WARNINGS_SHOWN", set()).discard(_UNFUSED_ID)


def _has_run_unfused() -> bool:
    return _UNFUSED_ID in getattr(sys.modules.get(_FLEX), "_WARNINGS_SHOWN", set())
