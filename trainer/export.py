"""Turns a checkpoint into a folder that serving engines load: config.json and model.safetensors, nothing else.

vLLM and SGLang take embeddings and the output head from the verifier, so the drafter's own weights are all there is.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.checkpoint_folders import find_checkpoint, flaw_of
from trainer.device import resolve_dtype
from trainer.errors import ConfigError
from trainer.files import sync_file, sync_folder, write_json
from trainer.model import Drafter
from trainer.model_config import DrafterConfig

ExportDtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True)
class Export:
    """What was written, and from which checkpoint."""

    folder: Path
    checkpoint: Path
    dtype: ExportDtype
    num_parameters: int
    block_size: int

    def lines(self) -> list[str]:
        """Return what was written and how engines are told to use it."""
        speculative = {"method": "dflash", "model": str(self.folder), "num_speculative_tokens": self.block_size - 1}
        return [
            f"{self.folder}: {self.num_parameters:,} parameters in {self.dtype}, from {self.checkpoint}",
            f"vLLM: vllm serve VERIFIER --speculative-config '{json.dumps(speculative)}'",
            f"SGLang: --speculative-algorithm DFLASH --speculative-draft-model-path {self.folder} "
            f"--speculative-num-draft-tokens {self.block_size}",
        ]


def export(source: Path, folder: Path, *, dtype: ExportDtype = "bfloat16") -> Export:
    """Write the drafter of `source`, a checkpoint or a run's folder, to a new `folder`; raises ConfigError.

    The folder appears whole or not at all. The weights are read back through the drafter before they are written, so
    that a missing, foreign or misshapen tensor is an error here and not silence in an engine.
    """
    checkpoint = _checkpoint_of(source)
    if folder.exists():
        raise ConfigError(f"export: {folder} exists already; name a new folder or remove that one")
    config = DrafterConfig.load(checkpoint / "config.json")
    weights = _weights(checkpoint, config)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    wanted = resolve_dtype(dtype, torch.device("cpu"))
    cast = {name: value.to(wanted).contiguous() for name, value in weights.items()}
    save_file(cast, part / "model.safetensors", metadata={"format": "pt"})
    sync_file(part / "model.safetensors")
    write_json(part / "config.json", config.to_json(dtype=dtype))
    part.rename(folder)
    sync_folder(folder.parent)
    num_parameters = sum(value.numel() for value in cast.values())
    return Export(folder, checkpoint, dtype, num_parameters, config.block_size)


def _checkpoint_of(source: Path) -> Path:
    """Return `source` if it is a whole checkpoint, else the newest whole one of the run in it; raises ConfigError."""
    if (source / "state.json").exists():
        if flaw := flaw_of(source):
            raise ConfigError(f"export: {source} is no whole checkpoint: {flaw}")
        return source
    found, notes = find_checkpoint(source / "checkpoints", "auto")
    if found is None:
        raise ConfigError("; ".join([f"export: no whole checkpoint in {source}", *notes]))
    return found


def _weights(checkpoint: Path, config: DrafterConfig) -> dict[str, Tensor]:
    drafter = Drafter(config)
    drafter.load_weights(load_file(checkpoint / "model.safetensors"), place=f"export: {checkpoint}/model.safetensors")
    return dict(drafter.state_dict())
