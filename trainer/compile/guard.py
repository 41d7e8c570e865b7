"""One guarded function: a code object of its own, one compiled entry, and whether it was warmed both ways."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import get_compilation_metrics
from torch.utils._pytree import tree_leaves

from trainer.compile.errors import FIXED_SHAPES, ONE_GUARD_A_KIND, WARM_BACKWARD, SealBroken, explain


class Owner(Protocol):
    """What a guarded function asks of the discipline that it belongs to."""

    backend: str
    options: dict[str, Any] | None

    @property
    def is_sealed(self) -> bool:
        """Whether nothing may be compiled any more."""
        ...

    def enter_thread(self) -> None:
        """Prepare the calling thread for compiling."""


def own_code(function: Callable[..., Any], name: str) -> types.FunctionType:
    """Return a copy of a plain function with a code object of its own, called `name` in torch's messages."""
    assert isinstance(function, types.FunctionType), "only plain functions have a code object to copy"
    code = function.__code__.replace(co_name=name, co_qualname=name)
    copy = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def caller_of(module: nn.Module) -> Callable[..., Any]:
    """Return a plain function that calls the module."""

    def call_module(*arguments: Any, **keywords: Any) -> Any:
        return module(*arguments, **keywords)

    return call_module


_thread = threading.local()


def running() -> Compiled | None:
    """Return the guarded function that the calling thread runs, so that a compilation can be given its name."""
    found: Compiled | None = getattr(_thread, "running", None)
    return found


@contextmanager
def _noted(compiled: Compiled) -> Iterator[None]:
    before, _thread.running = running(), compiled
    try:
        yield
    finally:
        _thread.running = before


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within it the calling thread runs guarded functions as plain Python: for evaluation at other shapes."""
    before, _thread.is_plain = getattr(_thread, "is_plain", False), True
    try:
        yield
    finally:
        _thread.is_plain = before


class Compiled:
    """A guarded function, called like the one it was made of."""

    def __init__(
        self, name: str, function: Callable[..., Any], discipline: Owner, *, replica: str | None = None
    ) -> None:
        self.name, self.replica = name, replica
        self.num_calls = 0
        self.needs_backward = False
        self.has_run_backward = False
        self.code = own_code(function, name)
        self._discipline = discipline
        self._run = torch.compile(
            self.code, fullgraph=True, dynamic=False, backend=discipline.backend, options=discipline.options
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the compiled function; raises SealBroken where it would compile again after the seal."""
        if getattr(_thread, "is_plain", False):
            return self.code(*arguments, **keywords)
        self._discipline.enter_thread()
        try:
            with _noted(self):
                output = self._run(*arguments, **keywords)
        except (RuntimeError, UserWarning) as error:
            if explained := explain(error, self.name, (arguments, keywords), replica=self.replica):
                raise explained from error
            raise
        if not self._discipline.is_sealed:
            self._note(output)
        return output

    def warm(self, *arguments: Any, **keywords: Any) -> Any:
        """Run forward and, where the output has a gradient, backward; gradients are left as they were."""
        output = self(*arguments, **keywords)
        ends = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if ends:
            leaves = [leaf for leaf in _leaves_of(ends) if leaf.requires_grad]
            torch.autograd.grad(ends, leaves, [torch.ones_like(end) for end in ends], allow_unused=True)
        return output

    def _note(self, output: Any) -> None:
        """Remember that this call ran, and notice its backward (by a hook on the node, which changes no tensor)."""
        self.num_calls += 1
        nodes = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        self.needs_backward |= bool(nodes)
        for node in nodes:
            node.register_prehook(lambda *_: setattr(self, "has_run_backward", True))

    def problem(self) -> SealBroken | None:
        """Return why this function cannot be sealed, None if it can."""
        if not self.num_calls:
            return self._broken("it was added but never run before the seal", "warm it or drop it")
        if self.needs_backward and not self.has_run_backward:
            return self._broken("its backward was not run before the seal", WARM_BACKWARD)
        if (num := len(_debug_get_cache_entry_list(self.code.__code__))) != 1:
            why = self.recompile_reasons()
            way_out = FIXED_SHAPES if "size mismatch" in why or not why else ONE_GUARD_A_KIND
            return self._broken(f"it has {num} compiled entries instead of one{why and ': ' + why}", way_out)
        return None

    def recompile_reasons(self) -> str:
        """Return the guards that failed when it was compiled again, as far as torch remembers."""
        found = [one.recompile_reason for one in get_compilation_metrics() if one.co_name == self.name]
        return "; ".join(dict.fromkeys(reason.strip() for reason in found if reason))

    def _broken(self, reason: str, way_out: str) -> SealBroken:
        return SealBroken(self.name, reason, way_out=way_out, replica=self.replica)


def _leaves_of(ends: list[Tensor]) -> list[Tensor]:
    """Return the tensors whose gradient a backward from `ends` would fill."""
    found: dict[int, Tensor] = {}
    pending, seen = [end.grad_fn for end in ends if end.grad_fn is not None], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            found[id(leaf)] = leaf
        pending += [after for after, _ in node.next_functions if after is not None]
    return list(found.values())
