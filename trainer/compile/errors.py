"""What the discipline raises, and what torch's own compiler errors mean for a guarded function."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

FIXED_SHAPES = "keep every batch at one fixed shape; a further shape needs a guarded function of its own, warmed first"
ONE_GUARD_A_KIND = (
    "guard a function of its own for each kind, shape and grad mode: this one changed what torch guards on"
)
WARM_BACKWARD = "run forward and backward of this function, with the same inputs that need gradients, before the seal"
COMPILE_IT = "call it through the compiled function, in the default stance"
UNSET_IT = "take back what set it; errors of the compiler would become silent eager runs"
_RECOMPILE_TEXT = "Detected recompile when torch.compile stance is 'fail_on_recompile'"
TRACEABLE = "take out of it what the compiler cannot trace, as the text above says, or guard the parts around that"
UNFUSED_TEXT = "flex_attention called without torch.compile"
_GUARDS = "guard failure(s):"
_NOT_CALLERS = ("torch.", "contextlib", "functools", "warnings")


class CompileError(RuntimeError):
    """Root of what this package raises; `exit_code` is a trainer's exit status."""

    exit_code = 4


class SwitchRefused(CompileError):
    """A switch of the environment or of torch's configuration would hide that something is not compiled."""

    exit_code = 2


class SealBroken(CompileError):
    """A guarded function was not served from what was warmed; says which, why, with what, in which replica."""

    def __init__(
        self, function: str, reason: str, *, shapes: str = "", way_out: str = "", replica: str | None = None
    ) -> None:
        self.function, self.reason, self.shapes, self.way_out = function, reason, shapes, way_out
        self.replica = replica
        where = f" of {replica}" if replica else ""
        lines = [f"compile discipline broken in {function}{where}: {reason}"]
        lines += [f"  called with: {shapes}"] if shapes else []
        lines += [f"  way out: {way_out}"] if way_out else []
        super().__init__("\n".join(lines))


def describe(arguments: Any) -> str:
    """Return dtype, shape and need of a gradient of every tensor in `arguments`."""
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{' grad' if leaf.requires_grad else ''}"
        for leaf in tree_leaves(arguments)
        if isinstance(leaf, Tensor)
    )


def explain(error: BaseException, name: str, arguments: Any, *, replica: str | None = None) -> CompileError | None:
    """Return what an error of torch's compiler means for a function, None where it is the function's own error."""
    text, shapes = str(error), describe(arguments)
    if UNFUSED_TEXT in text:
        reason = "flex attention ran unfused"
        return SealBroken(name, reason, shapes=shapes, way_out=COMPILE_IT, replica=replica)
    if _RECOMPILE_TEXT in text:
        guards = text.split(_GUARDS, 1)[-1].strip() if _GUARDS in text else "no entry fits"
        way_out = FIXED_SHAPES if "size mismatch" in guards else ONE_GUARD_A_KIND
        return SealBroken(name, f"compiled again: {guards}", shapes=shapes, way_out=way_out, replica=replica)
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        where = f" of {replica}" if replica else ""
        is_about_code = type(error).__name__ in ("Unsupported", "UserError")
        way_out = f"\n  way out: {TRACEABLE}" if is_about_code else ""
        said = f"{type(error).__name__}: {text.rstrip()}"
        return CompileError(f"{name}{where} did not compile ({shapes}): {said}{way_out}")
    return None


def explain_stray(error: BaseException, *, replica: str | None = None) -> CompileError | None:
    """Return what an error of torch's compiler means that came from code no guarded function ran.

    It is named by the last line outside torch, and its shapes are those of the torch function that was called there.
    """
    place, values = "code that is not guarded", dict[str, Any]()
    steps = list(walk_tb(error.__traceback__))
    for index, (frame, line) in enumerate(steps):
        if not str(frame.f_globals.get("__name__")).startswith(_NOT_CALLERS):
            place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"
            values = steps[index + 1][0].f_locals if index + 1 < len(steps) else {}
    return explain(error, place, list(values.values()), replica=replica)
