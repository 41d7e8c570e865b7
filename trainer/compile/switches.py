"""Switches that would silence torch, refused; and what is asked of Inductor."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from trainer.compile.errors import SwitchRefused

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


def compiler_options(device_type: str, *, cuda_graphs: bool = False) -> dict[str, Any]:
    """Return what is asked of Inductor, function by function: its global configuration is per thread since torch 2.13.

    Headers are not precompiled: torch keeps those outside the cache folder, so a cache on another machine would start
    a compiler although all is found. On the CPU a graph becomes one C++ program: half the compilations of a cold start.
    """
    options = {"cpp_cache_precompile_headers": False, "cpp_wrapper": device_type == "cpu"}
    return {**options, "triton.cudagraphs": True} if cuda_graphs else options


def apply_configuration(configuration: Mapping[str, Any]) -> None:
    """Set torch's configuration for the calling thread, as {"torch._dynamo.config.recompile_limit": 16}.

    Raises AttributeError for a setting that this torch does not have.
    """
    for path, value in configuration.items():
        module, _, name = path.rpartition(".")
        getattr(importlib.import_module(module), name)  # torch's own check names the setting
        setattr(importlib.import_module(module), name, value)


def refuse_silencers(environ: Mapping[str, str]) -> None:
    """Raise SwitchRefused where a switch would silence torch; call it in every thread that compiles."""
    if found := silencing_switches(environ):
        raise SwitchRefused(f"refused, since it would hide what is not compiled: {', '.join(found)}. Unset it.")
