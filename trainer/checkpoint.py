"""Checkpoints: `checkpoints/step-N/`, written whole or not at all, and read back bit for bit. No pickles.

A folder holds model.safetensors and config.json (a drafter as serving engines load it), optimizer.safetensors,
rng.safetensors, and state.json: step, data position, what the run must not change, and the size of every file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.checkpoint_folders import FORMAT, step_folders
from trainer.errors import ConfigError
from trainer.files import sync_file, sync_folder, write_json
from trainer.model import Drafter

_TENSOR_FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors")


@dataclass
class TrainState:
    """What a run carries from step to step beside weights: updates done, tokens seen, data position, first figures."""

    step: int = 0
    tokens: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    root: Path,
    drafter: Drafter,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    *,
    contract: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `root/step-N` beside its place, flush and rename it, drop all but the newest `keep`; return its path."""
    final = root / f"step-{state.step}"
    part = root / f"{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_file({name: value.contiguous() for name, value in drafter.state_dict().items()}, part / "model.safetensors")
    save_file(optimizer_tensors(drafter, optimizer), part / "optimizer.safetensors")
    save_file(rng_tensors(), part / "rng.safetensors")
    write_json(part / "config.json", drafter.config.to_json())
    sizes = {file.name: file.stat().st_size for file in part.iterdir()}
    for name in sizes:
        sync_file(part / name)
    write_json(part / "state.json", {"format": FORMAT, **vars(state), "contract": contract, "sizes": sizes})
    _replace_folder(part, final)
    _prune(root, keep)
    return final


def _replace_folder(part: Path, final: Path) -> None:
    """Rename `part` to `final`; an older folder of the same step is moved aside first, never deleted before."""
    old = final.with_name(final.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    part.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _prune(root: Path, keep: int) -> None:
    for folder in step_folders(root)[keep:]:
        doomed = folder.with_name(folder.name + ".part")  # so that a crash in between leaves no folder half empty
        folder.rename(doomed)
        shutil.rmtree(doomed)


def load_checkpoint(
    folder: Path, drafter: Drafter, optimizer: torch.optim.Optimizer, *, contract: Mapping[str, Any]
) -> TrainState:
    """Load weights, optimizer and random numbers in place, return the state; raises ConfigError if it does not fit."""
    raw = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    _refuse_change(raw["contract"], contract, folder)
    model, moments, rng = (load_file(folder / name) for name in _TENSOR_FILES)
    drafter.load_weights(model, place=f"resume: {folder}/model.safetensors")
    load_optimizer_tensors(drafter, optimizer, moments)
    restore_rng(rng)
    return TrainState(step=raw["step"], tokens=raw["tokens"], data=raw["data"], facts=raw["facts"])


def _refuse_change(saved: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    wanted = json.loads(json.dumps(wanted))  # tuples become lists, as in the file
    changed = [name for name in wanted if saved.get(name) != wanted[name]]
    if changed:
        details = "; ".join(f"{name}: saved {saved.get(name)}, recipe {wanted[name]}" for name in changed)
        raise ConfigError(
            f"resume: {folder} was trained with other choices ({details}); give resume=none to start anew"
        )


def optimizer_tensors(drafter: Drafter, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state by parameter name and kind, as `fc.weight/exp_avg`."""
    return {
        f"{name}/{kind}": value.contiguous()
        for name, parameter in drafter.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(drafter: Drafter, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put saved state back; the moments go to each parameter's device, the step count stays where AdamW wants it."""
    parameters = dict(drafter.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        name, kind = key.rsplit("/", 1)
        optimizer.state[parameters[name]][kind] = value.to(parameters[name].device)


def rng_tensors() -> dict[str, Tensor]:
    """Return the state of torch's generators."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: Mapping[str, Tensor]) -> None:
    """Set torch's generators; a GPU's state is ignored where there is none."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
