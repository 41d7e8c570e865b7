"""What separates compile caches from one another: nothing that torch's own keys tell apart already is in it.

Whoever keeps caches names a folder by it. It compiles nothing and starts no GPU work.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sysconfig
from typing import Any

import torch


def cache_key() -> dict[str, Any]:
    """Return torch and its commit, triton, CUDA, GPU models, Python ABI and CPU instruction set, with a short hash."""
    parts: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "gpus": gpu_models(),
        "python_abi": sysconfig.get_config_var("SOABI"),
        "cpu_isa": cpu_isa(),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return {"key": digest[:16], **parts}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu_models() -> list[str]:
    """Return the models of the visible GPUs, each once; `cpu` where there is none."""
    if not torch.cuda.is_available():
        return ["cpu"]
    return sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})


def cpu_isa() -> list[str]:
    """Return the vector instruction sets that Inductor chooses from, best first, and a limit set by the environment.

    Asked of the CPU, not of Inductor, whose own test compiles a program for each.
    """
    probes = (
        ("amx_tile", "_is_amx_tile_supported"),
        ("avx512_vnni", "_is_vnni_supported"),
        ("avx512_bf16", "_is_avx512_bf16_supported"),
        ("avx512", "_is_avx512_supported"),
        ("avx2", "_is_avx2_supported"),
    )
    found = [name for name, probe in probes if getattr(torch.cpu, probe, lambda: False)()]
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    return (found or [torch.backends.cpu.get_cpu_capability().lower()]) + ([f"limit={limit}"] if limit else [])
