"""Faults in the trainer's training loop, as somebody might make who edits the trainer.

`python -m tests.train.seal_faults RECIPE` trains the recipe here, as `python -m trainer train RECIPE` does, and has a
forked copy of the run go on with each fault, from just before where it matters; the run itself goes on without. Prints
as JSON how each ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import trainer.model
import trainer.run
import trainer.train
import trainer.update
import trainer.warmup
from trainer.batch import Batch
from trainer.cli import main
from trainer.compile import Discipline
from trainer.data import PackedRows
from trainer.ranks import Ranks
from trainer.step import Frozen, Functions, step_functions

# The shortest evaluation there is.
OPTIONS = ("decode.max_new_tokens=2", "checkpoint.every_steps=0")
MIXED = (
    "drafter.num_layers=2",
    "drafter.layer_types=[sliding_attention,full_attention]",
    "drafter.sliding_window=8",
)


def new_shape() -> None:
    """Batches are as short as the data that is left, not padded."""
    whole = PackedRows._next_batch

    def short(rows: PackedRows) -> Batch:
        return Batch(*(part[:1] for part in whole(rows).tensors().values()))

    PackedRows._next_batch = short


def new_dtype() -> None:
    """A step in bfloat16, after a warm-up in float32."""

    def in_bfloat16(step_loss: Any, drafter: Any, functions: Any, frozen: Frozen, *rest: Any, **options: Any) -> Any:
        return step_loss(
            drafter, functions, Frozen(frozen.embed_VH.bfloat16(), frozen.head_VH.bfloat16()), *rest, **options
        )

    trainer.update.step_loss = partial(in_bfloat16, trainer.update.step_loss)


def graph_break() -> None:
    """A layer looks at its own values."""
    plain = trainer.model.MLP.forward

    def watched(module: Any, x: Tensor) -> Tensor:
        if x.abs().max().item() > 1e4:
            raise ValueError("this layer blows up")
        return plain(module, x)

    trainer.model.MLP.forward = watched


def toggled_grad_mode() -> None:
    """A step without gradients, after a warm-up with them."""

    def without_gradients(step_loss: Any, *arguments: Any, **options: Any) -> Any:
        with torch.no_grad():
            return step_loss(*arguments, **options)

    trainer.update.step_loss = partial(without_gradients, trainer.update.step_loss)


def late_backward() -> None:
    """A warm-up that runs no backward."""

    def forward_only(warm_step: Any, *arguments: Any) -> None:
        with patch("torch.autograd.backward"):
            warm_step(*arguments)

    trainer.train.warm_step = partial(forward_only, trainer.train.warm_step)


def unfused_attention() -> None:
    """A step that calls flex attention without having compiled it."""

    def distilled(step_loss: Any, *arguments: Any, **options: Any) -> Any:
        x = torch.ones(1, 2, 16, 8)
        flex_attention(x, x, x)
        return step_loss(*arguments, **options)

    trainer.update.step_loss = partial(distilled, trainer.update.step_loss)


def unfused_and_swallowed() -> None:
    """The same by somebody who wants to hear of no warning and no error."""

    def distilled(step_loss: Any, *arguments: Any, **options: Any) -> Any:
        x = torch.ones(1, 2, 16, 8)
        with warnings.catch_warnings(), suppress(RuntimeError):
            warnings.simplefilter("ignore")
            flex_attention(x, x, x)
        return step_loss(*arguments, **options)

    trainer.update.step_loss = partial(distilled, trainer.update.step_loss)


def suppressed_error() -> None:
    """A step after which the compiler's errors are silent eager runs."""

    def suppressing(draw_anchors: Any, *arguments: Any, **options: Any) -> Any:
        torch._dynamo.config.suppress_errors = True
        return draw_anchors(*arguments, **options)

    trainer.train.draw_anchors = partial(suppressing, trainer.train.draw_anchors)


def one_function_for_all_kinds() -> None:
    """Sliding and full layers share the function that builds their masks."""

    def shared(config: Any, form: Any, *, wrap: Any) -> Functions:
        def wrap_others(name: str, function: Any) -> Any:
            return function if name.startswith("mask_") else wrap(name, function)

        made = step_functions(config, form, wrap=wrap_others)
        build_mask = wrap("mask", lambda build, *parts: build(*parts))
        return replace(made, masks={kind: partial(build_mask, build) for kind, build in made.masks.items()})

    trainer.warmup.step_functions = shared


# Each fault, and where a run forks to go on with it: before all, before the warm-up, or after the seal.
FAULTS: dict[str, tuple[Callable[[], None], str]] = {
    "new_shape": (new_shape, "_train"),
    "new_dtype": (new_dtype, "_train"),
    "graph_break": (graph_break, "_compile"),
    "toggled_grad_mode": (toggled_grad_mode, "_train"),
    "late_backward": (late_backward, "_compile"),
    "unfused_attention": (unfused_attention, "_train"),
    "unfused_and_swallowed": (unfused_and_swallowed, "_train"),
    "suppressed_error": (suppressed_error, "_train"),
    "one_function_for_all_kinds": (one_function_for_all_kinds, "main"),
}


class Rank1(Ranks):
    """One rank alone, which is called as if it had others beside it."""

    name = "rank 1"


class Forks:
    """Forks of this process that go on with a fault each, one after another, and how they ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended: dict[str, dict[str, Any]] = {}
        self._pid = os.getpid()

    @property
    def is_fork(self) -> bool:
        """True in a process that has a fault."""
        return os.getpid() != self._pid

    def fork_at(self, place: str) -> str | None:
        """Fork for each fault of a place; return its name in the fork, None here once all have ended."""
        for name, (fault, where) in FAULTS.items():
            if where != place or self.is_fork:
                continue
            if not (pid := os.fork()):
                log = os.open(self.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                fault()
                return name
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self.ended[name] = self._how_it_ended(name, status)
        return None

    def _how_it_ended(self, name: str, status: int) -> dict[str, Any]:
        result = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        (self.folder / "result.json").unlink()
        said = (self.folder / f"{name}.log").read_text(encoding="utf-8")
        return {"status": status, "said": said, "error": result["error"], "cause": result["cause"]}


def try_all(recipe: str, folder: Path) -> int:
    """Run the recipe in the working directory, and forks of the run with a fault each; print how all ended."""
    forks = Forks(folder)
    trainer.run.join = lambda _: Rank1()
    words = ["train", recipe, *OPTIONS]
    if forks.fork_at("main"):
        # other functions than those in the cache: a compiler for C++ would gain nothing
        trainer.warmup.Discipline = partial(Discipline, backend="aot_eager")
        words += MIXED
    for place in ("_compile", "_train"):
        setattr(trainer.train.Trainer, place, _forking(getattr(trainer.train.Trainer, place), forks))
    try:
        status = main(words)
    except BaseException:
        if not forks.is_fork:
            raise
        traceback.print_exc()  # a fork must not return into whoever called
        status = 1
    if forks.is_fork:
        sys.stdout.flush()
        os._exit(status)
    sys.stdout.write("\n" + json.dumps({"without a fault": {"status": status}, **forks.ended}))
    return status


def _forking(method: Callable[..., None], forks: Forks) -> Callable[..., None]:
    def fork_first(*arguments: Any) -> None:
        forks.fork_at(method.__name__)
        method(*arguments)

    return fork_first


if __name__ == "__main__":
    sys.exit(try_all(sys.argv[1], Path.cwd()))
