"""Checkpoints: whole or absent, exact, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.cases import drafter_config
from trainer.checkpoint import TrainState, load_checkpoint, save_checkpoint
from trainer.checkpoint_folders import find_checkpoint, flaw_of, step_folders
from trainer.errors import ConfigError
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.optim import make_optimizer
from trainer.sections import OptimConfig

CONTRACT = {"seed": 0, "layers": (1, 3)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def make() -> tuple[Drafter, torch.optim.AdamW]:
    drafter = Drafter(drafter_config())
    return drafter, make_optimizer(drafter, OptimConfig(lr=0.01, weight_decay=0.1))


def steps(drafter: Drafter, optimizer: torch.optim.Optimizer, count: int) -> None:
    """A few updates whose gradients come from the global generator, so that random numbers must be restored too."""
    for _ in range(count):
        for parameter in drafter.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def save(root: Path, step: int, drafter: Drafter, optimizer: torch.optim.Optimizer, **options: Any) -> Path:
    state = TrainState(step=step, tokens=step * 10, data={"epoch": 1, "at": step}, facts={"loss_first": 4.5})
    return save_checkpoint(root, drafter, optimizer, state, **({"contract": CONTRACT, "keep": 2} | options))


def test_going_on_from_a_checkpoint_equals_never_having_stopped(root: Path) -> None:
    drafter, optimizer = make()
    steps(drafter, optimizer, 3)
    folder = save(root, 3, drafter, optimizer)
    steps(drafter, optimizer, 4)
    other, other_optimizer = make()
    state = load_checkpoint(folder, other, other_optimizer, contract=CONTRACT)
    steps(other, other_optimizer, 4)
    assert state == TrainState(step=3, tokens=30, data={"epoch": 1, "at": 3}, facts={"loss_first": 4.5})
    for name, value in drafter.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_newest_whole_checkpoint_is_found_and_broken_ones_are_named(root: Path) -> None:
    drafter, optimizer = make()
    folders = [save(root, step, drafter, optimizer, keep=9) for step in (9, 10, 11)]
    (folders[2] / "optimizer.safetensors").write_bytes(b"short")
    (root / "step-12.part").mkdir()
    found, notes = find_checkpoint(root, "auto")
    assert found == folders[1]
    assert len(notes) == 1
    assert "optimizer.safetensors is 5 bytes long" in notes[0]


def test_named_and_no_checkpoints(root: Path) -> None:
    drafter, optimizer = make()
    folder = save(root, 1, drafter, optimizer)
    assert find_checkpoint(root, "none") == (None, [])
    assert find_checkpoint(root / "empty", "auto") == (None, [])
    assert find_checkpoint(root / "empty", str(folder)) == (folder, [])
    with pytest.raises(ConfigError, match="is no whole checkpoint"):
        find_checkpoint(root, str(root / "step-77"))


def test_only_the_newest_are_kept(root: Path) -> None:
    drafter, optimizer = make()
    for step in (2, 10, 9):
        save(root, step, drafter, optimizer)
    assert [folder.name for folder in step_folders(root)] == ["step-10", "step-9"]
    assert {path.name for path in root.iterdir()} == {"step-10", "step-9"}


def test_saving_a_step_again_replaces_it(root: Path) -> None:
    drafter, optimizer = make()
    save(root, 2, drafter, optimizer)
    steps(drafter, optimizer, 1)
    folder = save(root, 2, drafter, optimizer)
    other, other_optimizer = make()
    load_checkpoint(folder, other, other_optimizer, contract=CONTRACT)
    assert torch.equal(other.fc.weight, drafter.fc.weight)
    assert [path.name for path in root.iterdir()] == ["step-2"]


def test_a_left_over_half_checkpoint_does_not_disturb(root: Path) -> None:
    drafter, optimizer = make()
    half = root / "step-2.part"
    half.mkdir(parents=True)
    (half / "rubbish").write_text("x", encoding="utf-8")
    folder = save(root, 2, drafter, optimizer)
    assert flaw_of(folder) is None
    assert not (folder / "rubbish").exists()


def test_other_choices_are_refused_by_name(root: Path) -> None:
    drafter, optimizer = make()
    folder = save(root, 2, drafter, optimizer)
    with pytest.raises(ConfigError, match=r"seed: saved 0, recipe 1.*resume=none"):
        load_checkpoint(folder, drafter, optimizer, contract=CONTRACT | {"seed": 1})


def test_a_checkpoint_of_another_format_is_passed_over(root: Path) -> None:
    drafter, optimizer = make()
    path = save(root, 2, drafter, optimizer) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"format": 99}), encoding="utf-8")
    assert flaw_of(path.parent) == "format 99, this trainer reads 1"


def test_the_folder_is_a_drafter_that_engines_load(root: Path) -> None:
    drafter, optimizer = make()
    folder = save(root, 2, drafter, optimizer)
    assert DrafterConfig.load(folder / "config.json") == drafter.config
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert raw["block_size"] == raw["dflash_config"]["block_size"] == 4
    assert raw["architectures"] == ["DFlashDraftModel"]
