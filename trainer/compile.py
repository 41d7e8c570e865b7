"""Compile discipline: every compiled function is added by name, warmed forward and backward, then sealed.

After the seal a recompile, a late backward, a graph break or a silent switch ends the run with an exception that says
which function, why, with what shapes, and what to do. It imports nothing else of the trainer and trains nothing.

What torch does by itself, and what is done about it:
- a code object with several entries loses entries under threads -> one own code object a function and replica;
- a backward is compiled at its first call, unseen by `fail_on_recompile` -> a callback of dynamo refuses it;
- several switches turn errors into silent eager runs -> refused at the start, in every thread that compiles.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.utils import counters as torch_counters
from torch.utils._pytree import tree_leaves

FIXED_SHAPES = "keep every batch at the recipe's fixed shape; a further shape needs a function of its own, warmed first"
WARM_BACKWARD = "run forward and backward of this function, with the same inputs that need gradients, before the seal"
COMPILE_IT = "call it through the compiled function, in the default stance"
_RECOMPILE_TEXT = "Detected recompile when torch.compile stance is 'fail_on_recompile'"
_UNFUSED_TEXT = "flex_attention called without torch.compile"


class CompileError(RuntimeError):
    """Root of what this module raises; `exit_code` is the trainer's exit status."""

    exit_code = 4


class SwitchRefused(CompileError):
    """A switch of the environment or of torch's configuration would hide that something is not compiled."""

    exit_code = 2


class SealBroken(CompileError):
    """A compiled function was not served from what was warmed."""

    def __init__(self, function: str, reason: str, *, shapes: str = "", way_out: str = "") -> None:
        self.function, self.reason, self.shapes, self.way_out = function, reason, shapes, way_out
        lines = [f"compile discipline broken in {function}: {reason}"]
        lines += [f"  called with: {shapes}"] if shapes else []
        lines += [f"  way out: {way_out}"] if way_out else []
        super().__init__("\n".join(lines))


_ON = ("1", "true", "True")
_ENVIRONMENT_SWITCHES = {
    **dict.fromkeys(("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_SUPPRESS_ERRORS"), _ON),
    **dict.fromkeys(("TORCH_COMPILE_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FORCE_DISABLE_CACHES"), _ON),
    **dict.fromkeys(("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE"), ("0",)),
}
_CONFIG_SWITCHES = (
    ("torch._dynamo.config", "disable", False),
    ("torch._dynamo.config", "suppress_errors", False),
    ("torch._dynamo.config", "error_on_nested_fx_trace", True),
    ("torch._inductor.config", "force_disable_caches", False),
    ("torch._inductor.config", "fx_graph_cache", True),
    ("torch._functorch.config", "enable_autograd_cache", True),
)


def silencing_switches(environ: Mapping[str, str]) -> list[str]:
    """Return each setting, of `environ` or of torch as this thread sees it, that would turn failures into silence."""
    found = [f"{name}={environ[name]}" for name, bad in _ENVIRONMENT_SWITCHES.items() if environ.get(name) in bad]
    if environ.get("TORCH_COMPILE_OVERRIDE_BACKENDS"):
        found.append(f"TORCH_COMPILE_OVERRIDE_BACKENDS={environ['TORCH_COMPILE_OVERRIDE_BACKENDS']}")
    for module_name, attribute, wanted in _CONFIG_SWITCHES:
        actual = getattr(sys.modules.get(module_name), attribute, wanted)  # a release without the switch has no trouble
        if bool(actual) != wanted:
            found.append(f"{module_name}.{attribute}={actual}")
    return found


def compiler_options(device_type: str) -> dict[str, Any]:
    """Return what is asked of Inductor, function by function: its global configuration is per thread since torch 2.13.

    Headers are not precompiled: torch keeps those outside the cache folder, so a cache on another machine would start
    a compiler although all is found. On the CPU a graph becomes one C++ program: half the compilations of a cold start.
    """
    return {"cpp_cache_precompile_headers": False, "cpp_wrapper": device_type == "cpu"}


def refuse_silencers(environ: Mapping[str, str]) -> None:
    """Raise SwitchRefused where a switch would silence torch; call it in every thread that compiles."""
    if found := silencing_switches(environ):
        raise SwitchRefused(f"refused, since it would hide what is not compiled: {', '.join(found)}. Unset it.")


@dataclass(frozen=True)
class Counters:
    """What torch has compiled in this process so far."""

    compiles: int = 0
    recompiles: int = 0
    lazy_backwards: int = 0
    graph_breaks: int = 0
    cudagraph_skips: int = 0
    fx_hits: int = 0
    fx_misses: int = 0
    fx_bypasses: int = 0
    aot_hits: int = 0
    aot_misses: int = 0
    aot_bypasses: int = 0

    def risen_since(self, earlier: Counters) -> list[str]:
        """Return the counts that are higher than in `earlier`, as text."""
        before, now = asdict(earlier), asdict(self)
        return [f"{name} {before[name]} -> {now[name]}" for name in now if now[name] != before[name]]


def read_counters(compiles: int = 0, recompiles: int = 0, lazy_backwards: int = 0) -> Counters:
    """Return torch's own counters beside the compilations that a discipline has seen."""
    inductor, autograd = torch_counters["inductor"], torch_counters["aot_autograd"]
    fx = (inductor[f"fxgraph_cache_{what}"] for what in ("hit", "miss", "bypass"))
    aot = (autograd[f"autograd_cache_{what}"] for what in ("hit", "miss", "bypass"))
    graph_breaks = sum(torch_counters["graph_break"].values())
    return Counters(compiles, recompiles, lazy_backwards, graph_breaks, inductor["cudagraph_skips"], *fx, *aot)


def own_code(function: Callable[..., Any], name: str) -> types.FunctionType:
    """Return a copy of a plain function with a code object of its own, called `name` in torch's messages."""
    assert isinstance(function, types.FunctionType), "only plain functions have a code object to copy"
    code = function.__code__.replace(co_name=name, co_qualname=name)
    copy = types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def describe(arguments: Any) -> str:
    """Return dtype, shape and need of a gradient of every tensor in `arguments`."""
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{' grad' if leaf.requires_grad else ''}"
        for leaf in tree_leaves(arguments)
        if isinstance(leaf, Tensor)
    )


_thread = threading.local()


@contextmanager
def _running(name: str) -> Iterator[None]:
    """Note which function this thread runs, so that a compilation can be given its name."""
    _thread.running = name
    try:
        yield
    finally:
        del _thread.running


def explain(error: BaseException, name: str, arguments: Any) -> CompileError | None:
    """Return what an error of torch's compiler means for a function, None where it is the function's own error."""
    text = str(error)
    if _UNFUSED_TEXT in text:
        return SealBroken(name, "flex attention ran unfused", shapes=describe(arguments), way_out=COMPILE_IT)
    if _RECOMPILE_TEXT in text:
        reason = text.split("guard failure(s):", 1)[-1].strip() if "guard failure(s):" in text else "no entry fits"
        return SealBroken(name, f"compiled again: {reason}", shapes=describe(arguments), way_out=FIXED_SHAPES)
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return CompileError(f"{name} did not compile ({describe(arguments)}): {type(error).__name__}: {text}")
    return None


class Compiled:
    """One compiled function: its own code object, one entry, and a record of whether it was warmed both ways."""

    def __init__(self, name: str, function: Callable[..., Any], discipline: Discipline) -> None:
        self.name = name
        self.num_calls = 0
        self.needs_backward = False
        self.has_run_backward = False
        self.code = own_code(function, name)
        self._discipline = discipline
        self._run = torch.compile(self.code, fullgraph=True, dynamic=False, options=discipline.options)

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled function; raises SealBroken where it would compile again after the seal."""
        try:
            with _running(self.name):
                output = self._run(*arguments)
        except (RuntimeError, UserWarning) as error:
            if explained := explain(error, self.name, arguments):
                raise explained from error
            raise
        if not self._discipline.is_sealed:
            self._note(output)
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
            return SealBroken(self.name, "it was added but never run before the seal", way_out="warm it or drop it")
        if self.needs_backward and not self.has_run_backward:
            return SealBroken(self.name, "its backward was not run before the seal", way_out=WARM_BACKWARD)
        if (num := len(_debug_get_cache_entry_list(self.code.__code__))) != 1:
            return SealBroken(self.name, f"it has {num} compiled entries instead of one", way_out=FIXED_SHAPES)
        return None


class Discipline:
    """The compiled functions of one replica in this process: add, warm, seal, and verify after every step.

    `on_compile` hears what is about to be compiled, or loaded from the cache, while that takes its time.
    """

    def __init__(self, device_type: str = "cpu", *, on_compile: Callable[[str], None] | None = None) -> None:
        refuse_silencers(os.environ)
        self.options = compiler_options(device_type)
        # Once a process torch would print this as a warning; the unfused form holds the whole score matrix in memory.
        warnings.filterwarnings("error", message=_UNFUSED_TEXT)
        self.functions: dict[str, Compiled] = {}
        self._compiles = self._recompiles = self._lazy_backwards = 0
        self._owner: dict[str, str] = {}
        self._tell = on_compile or (lambda _: None)
        self._sealed_at: Counters | None = None
        callback_handler.register_start_callback(self._on_compile)

    @property
    def is_sealed(self) -> bool:
        """True from `seal` to `unseal`."""
        return self._sealed_at is not None

    def add(self, name: str, function: Callable[..., Any]) -> Compiled:
        """Return a compiled copy of a plain function; a name is used once."""
        if name in self.functions:
            raise ValueError(f"a compiled function called {name} exists already")
        self.functions[name] = Compiled(name, function, self)
        return self.functions[name]

    def counters(self) -> Counters:
        """Return what was compiled so far."""
        return read_counters(self._compiles, self._recompiles, self._lazy_backwards)

    def seal(self) -> None:
        """Forbid compiling from here on; raises SealBroken where a function was not warmed, or has several entries."""
        for compiled in self.functions.values():
            if problem := compiled.problem():
                raise problem
        torch.compiler.set_stance("fail_on_recompile")
        self._sealed_at = self.counters()

    def verify(self) -> Counters:
        """Return the counters; raises SealBroken if anything was compiled since the seal."""
        now = self.counters()
        if self._sealed_at is not None and (risen := now.risen_since(self._sealed_at)):
            raise SealBroken(
                "this process", f"torch compiled after the seal: {', '.join(risen)}", way_out=WARM_BACKWARD
            )
        return now

    def close(self) -> None:
        """Lift the seal and stop listening; the compiled functions stay usable."""
        if self.is_sealed:
            torch.compiler.set_stance("default")
        self._sealed_at = None
        callback_handler.remove_start_callback(self._on_compile)

    def _on_compile(self, event: CallbackArgs) -> None:
        frame, again = _frame_of(str(event.compile_id))
        if event.callback_trigger is CallbackTrigger.LAZY_BACKWARD:
            owner = self._owner.get(frame, "an unknown function")
            if self.is_sealed:
                raise SealBroken(owner, "its backward would be compiled after the seal", way_out=WARM_BACKWARD)
            self._lazy_backwards += 1
            self._tell(f"backward of {owner}")
        elif event.callback_trigger is CallbackTrigger.DYNAMO:
            self._compiles += 1
            self._recompiles += again
            self._owner[frame] = getattr(_thread, "running", "a function outside the discipline")
            self._tell(self._owner[frame])


def _frame_of(compile_id: str) -> tuple[str, bool]:
    """Return (frame, whether it was compiled before) of dynamo's id, which ends in FRAME/COUNT."""
    match = re.search(r"(\d+)/(\d+)\D*$", compile_id)
    return (match[1], int(match[2]) > 0) if match else (compile_id, False)
