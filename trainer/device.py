"""Which device and which compute dtype a recipe means on this machine."""

from __future__ import annotations

import torch

from trainer.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`; raises ConfigError where there is no GPU to be had.

    A process sees one GPU, as cuda:0: the index is part of compile cache keys, so it must not differ between ranks.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda was asked for, but torch sees no GPU (try device=cpu)")
    use_gpu = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda", 0) if use_gpu else torch.device("cpu")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the compute dtype; `auto` is bfloat16 on a GPU and float32 on the CPU. Weights are float32 in any case."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def resolve_num_ranks(asked: int | None, device: torch.device) -> int:
    """Return how many ranks train here: one a visible GPU, or one on the CPU, unless asked otherwise."""
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else None
    if asked is None:
        return num_gpus or 1
    if asked < 1:
        raise ConfigError(f"--nproc {asked}: at least one process must train")
    if num_gpus is not None and asked > num_gpus:
        raise ConfigError(f"--nproc {asked}: torch sees {num_gpus} GPUs, and each process has one of its own")
    return asked
