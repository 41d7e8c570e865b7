"""What torch does to replicas that nobody protects, shown for real; a program: `python -m tests.train.controls NAME`.

Each prints one JSON object. What protects against it is tested beside it, in test_threads.py and test_broken_seals.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from trainer.preflight.threads import try_shared_code

SECONDS = 3.0


def shared_entries() -> dict[str, Any]:
    """Threads share a code object with eight warm entries: some calls find none of them."""
    counts = try_shared_code(3, is_chosen=True).counts
    return {"calls": counts.calls, "misses": counts.spurious_recompiles}


def recompile_limit() -> dict[str, Any]:
    """More shapes than the limit allows: the rest runs eagerly, and nothing is raised."""
    eager = []

    def scale(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            eager.append(tuple(x.shape))
        return x * 2

    torch._dynamo.config.recompile_limit = 2
    compiled = torch.compile(scale, backend="aot_eager", dynamic=False)
    errors = 0
    for length in range(3, 9):
        try:
            compiled(torch.ones(length))
        except RuntimeError:
            errors += 1
    return {"eager_calls": len(eager), "errors": errors}


def thread_configuration() -> dict[str, Any]:
    """The main thread raises a limit; a worker reads the default."""
    default = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = 64
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch._dynamo.config.recompile_limit))
    thread.start()
    thread.join()
    return {"default": default, "main": torch._dynamo.config.recompile_limit, "worker": seen[0]}


def late_backward() -> dict[str, Any]:
    """Only the forward was warmed; under fail_on_recompile the backward is compiled, and nothing is raised."""
    late = []

    def heard(event: CallbackArgs) -> None:
        late.append(event.callback_trigger is CallbackTrigger.LAZY_BACKWARD)

    compiled = torch.compile(lambda x: torch.sin(x).sum(), backend="aot_eager", dynamic=False)
    loss = compiled(torch.ones(3, requires_grad=True))
    torch.compiler.set_stance("fail_on_recompile")
    callback_handler.register_start_callback(heard)
    loss.backward()
    return {"compiled_after_the_stance": sum(late)}


def fx_crash() -> dict[str, Any]:
    """One thread compiles new shapes while another calls what is warm and has nothing to do with it."""
    warm = torch.compile(lambda x: x + 1, backend="aot_eager", dynamic=False)
    warm(torch.ones(2))
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    ends_at = time.monotonic() + SECONDS
    errors: dict[str, int] = {}
    calls = 0

    def compile_on() -> None:
        compiled = torch.compile(lambda x: (x * x).tanh(), backend="aot_eager", dynamic=False)
        length = 3
        while time.monotonic() < ends_at:
            compiled(torch.ones(length))
            length += 1

    thread = threading.Thread(target=compile_on)
    thread.start()
    while time.monotonic() < ends_at:
        calls += 1
        try:
            warm(torch.ones(2))
        except RuntimeError as error:
            errors[str(error)[:60]] = errors.get(str(error)[:60], 0) + 1
    thread.join()
    return {"calls": calls, "errors": errors}


CONTROLS: dict[str, Callable[[], dict[str, Any]]] = {
    one.__name__: one for one in (shared_entries, recompile_limit, thread_configuration, late_backward, fx_crash)
}

if __name__ == "__main__":
    print(json.dumps(CONTROLS[sys.argv[1]]()))  # noqa: T201 - a program that answers on stdout
