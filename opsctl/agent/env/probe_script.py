"""Runs inside an environment's own Python (`python -I -B -c SOURCE`): imports, versions, torch's devices, cache key.

Reads {"distributions": [...], "torch": bool} from stdin, prints one JSON object as its last row.
Standard library only; imports nothing of opsctl, since the environment does not hold it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import sysconfig
import traceback
from typing import Any

MATRIX_SIZE = 256


def top_level_modules(name: str) -> list[str]:
    """The modules that a distribution is imported by: the one of its own name, or all public ones."""
    found = set()
    for file in importlib.metadata.files(name) or []:
        first = file.parts[0]
        if first in ("..", "__pycache__") or first.endswith((".dist-info", ".data", ".pth", ".libs")):
            continue
        module = first if len(file.parts) > 1 else first.split(".", 1)[0] if first.endswith((".py", ".so")) else ""
        if module.isidentifier():
            found.add(module)
    own = {module for module in found if module.lower().replace("_", "-") == name.lower().replace("_", "-")}
    return sorted(own or {module for module in found if not module.startswith("_")})


def is_inside(module: Any) -> bool:
    """Whether a module came from this environment."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return any(place.startswith(sys.prefix + os.sep) for place in places)


def probe_distribution(name: str) -> dict[str, Any]:
    """Import what a distribution brings; errors as text."""
    found: dict[str, Any] = {"version": "", "modules": [], "errors": []}
    try:
        found["version"] = importlib.metadata.version(name)
        found["modules"] = top_level_modules(name)
    except importlib.metadata.PackageNotFoundError:
        found["errors"].append(f"{name} is not installed")
    for module_name in found["modules"]:
        try:
            module = importlib.import_module(module_name)
        except BaseException:  # noqa: BLE001 - whatever an import raises, SystemExit too, is the answer
            found["errors"].append(f"import {module_name}: {traceback.format_exc(limit=-3).strip()}")
            continue
        if not is_inside(module):
            found["errors"].append(f"import {module_name}: came from {getattr(module, '__file__', '?')}")
    return found


def probe_device(torch: Any, device: str) -> str:
    """Multiply two small matrices there; "" is well, anything else is what went wrong."""
    try:
        ones = torch.ones(MATRIX_SIZE, MATRIX_SIZE, device=device)
        total = float((ones @ ones).sum())
    except Exception as error:  # noqa: BLE001 - a broken driver may raise anything; the text is the answer
        return f"{type(error).__name__}: {error}"
    expected = float(MATRIX_SIZE**3)
    return "" if total == expected else f"a product of ones summed to {total}, not {expected}"


def probe_torch() -> dict[str, Any]:
    """What torch says of itself and of its devices."""
    torch: Any = importlib.import_module("torch")  # not a dependency of the agent
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    devices = ["cpu", *(f"cuda:{index}" for index in range(len(names)))]
    return {
        "version": torch.__version__,
        "git": torch.version.git_version or "",
        "cuda": torch.version.cuda or "",
        "hip": getattr(torch.version, "hip", None) or "",
        "gpus": names,
        "devices": {device: probe_device(torch, device) for device in devices},
    }


def version_or_none(name: str) -> str:
    """The version of a distribution, "" if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Answer one request."""
    gc.disable()  # a third of the time that an import of torch takes goes into looking through what it makes
    request = json.load(sys.stdin)
    answer: dict[str, Any] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
        "distributions": {name: probe_distribution(name) for name in request["distributions"]},
        "triton": version_or_none("triton") or version_or_none("pytorch-triton"),
        "torch": None,
    }
    if request["torch"]:
        try:
            answer["torch"] = probe_torch()
        except BaseException:  # noqa: BLE001 - a torch that does not even load is an answer too
            answer["torch"] = {"error": traceback.format_exc(limit=-3).strip()}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # all is said, and taking everything down again costs a tenth of a second


if __name__ == "__main__":
    main()
