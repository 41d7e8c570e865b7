"""Runs inside an environment's own Python (`python -I -B -c SOURCE`): the state in which torch compiles there.

Prints one JSON object as its last row. Compiles nothing that needs a compiler, and keeps nothing. Standard library,
torch and, where it is there, transformers; imports nothing of opsctl.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

_CONFIG = (
    ("torch._dynamo.config", "disable", False),
    ("torch._dynamo.config", "suppress_errors", False),
    ("torch._dynamo.config", "error_on_nested_fx_trace", True),
    ("torch._inductor.config", "force_disable_caches", False),
)


def is_tracing() -> bool:
    """Whether torch believes that FX traces symbolically in this thread."""
    module: Any = importlib.import_module("torch.fx._symbolic_trace")
    asked = getattr(module, "is_fx_symbolic_tracing", None) or module.is_fx_tracing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(asked())


def probe_tracing(torch: Any) -> dict[str, Any]:
    """The FX flag before and after masks are made, eagerly and in compiled code; and a compiled call after that."""
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")

    def mask() -> Any:
        return module.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")

    found: dict[str, Any] = {"before": is_tracing(), "problem": ""}
    try:
        mask()
        found["after_eager"] = is_tracing()
        if importlib.import_module("torch._dynamo.config").disable:
            return found  # nothing would be compiled, which is said elsewhere
        torch.compile(mask, backend="eager")()
        found["after_compiled"] = is_tracing()
        torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(2))
    except Exception as error:  # noqa: BLE001 - the text is the answer
        found["problem"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return found


class Spy:
    """While entered, notes who asks torch to compile, and compiles nothing."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.callers: list[str] = []

    def __enter__(self) -> Spy:
        self._saved = self._torch.compile, self._torch.nn.Module.compile
        self._torch.compile = self._note
        self._torch.nn.Module.compile = lambda module, *_, **__: self._tell(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._torch.compile, self._torch.nn.Module.compile = self._saved

    def _note(self, model: Any = None, **_: Any) -> Any:
        self._tell(1)
        return (lambda function: function) if model is None else model

    def _tell(self, above: int) -> None:
        frame = sys._getframe(above + 1)
        path = frame.f_code.co_filename.rpartition("site-packages/")[2]
        self.callers.append(f"{path}:{frame.f_lineno}")


def tiny_model(transformers: Any, **options: Any) -> Any:
    """A language model of one layer."""
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval()


def asked_by(torch: Any, work: Callable[[], Any]) -> dict[str, Any]:
    """Who asks torch to compile while `work` is done."""
    with Spy(torch) as spy:
        problem = ""
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                work()
        except Exception as error:  # noqa: BLE001 - a model that does not run is no answer to this question
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    return {"callers": sorted(set(spy.callers)), "problem": problem}


def probe_hidden(torch: Any) -> dict[str, Any]:
    """What is compiled without the user's word: by an import, by a model as it comes, by one with flex attention."""
    found: dict[str, Any] = {"transformers": "", "callback": is_hooked(torch)}
    try:
        found["transformers"] = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return found
    ids = torch.zeros((1, 8), dtype=torch.int64)

    def as_it_comes() -> None:
        tiny_model(importlib.import_module("transformers"))(ids)

    def with_flex() -> None:
        tiny_model(importlib.import_module("transformers"), attn_implementation="flex_attention")(ids)

    found["default"] = asked_by(torch, as_it_comes)
    found["flex"] = asked_by(torch, with_flex)
    return found


def is_hooked(torch: Any) -> bool:
    """Whether something has set dynamo's hook already: then every function that runs is compiled."""
    module: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    asked = getattr(module, "get_eval_frame_callback", None)
    return asked is not None and asked() not in (None, False)


def probe_caches() -> dict[str, Any]:
    """Whether torch keeps and finds what it compiles."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    functorch: Any = importlib.import_module("torch._functorch.config")
    return {
        "fx_graph_cache": bool(inductor.fx_graph_cache),
        "autograd_cache": bool(functorch.enable_autograd_cache),
        "force_disable_caches": bool(inductor.force_disable_caches),
    }


def probe_config() -> list[str]:
    """The settings of torch, as this process has them, that would hide what is not compiled."""
    found = []
    for name, attribute, wanted in _CONFIG:
        actual = getattr(importlib.import_module(name), attribute, wanted)
        if bool(actual) != wanted:
            found.append(f"{name}.{attribute}={actual}")
    return found


def main() -> None:
    """Answer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    answer: dict[str, Any] = {"error": ""}
    try:
        torch: Any = importlib.import_module("torch")
        answer["torch"] = torch.__version__
        answer["hidden"] = probe_hidden(torch)
        answer["caches"] = probe_caches()
        answer["config"] = probe_config()
        answer["tracing"] = probe_tracing(torch)
    except BaseException:  # noqa: BLE001 - a torch that does not even load is an answer too
        answer["error"] = traceback.format_exc(limit=-3).strip()
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
