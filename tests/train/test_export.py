"""Exports: what an engine reads is what the checkpoint holds, and half an export does not exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.train.cases import drafter_config
from trainer.checkpoint import TrainState, save_checkpoint
from trainer.cli import main
from trainer.errors import EXIT_CONFIG, ConfigError
from trainer.export import export
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.optim import make_optimizer
from trainer.sections import OptimConfig


def saved(run: Path, *steps: int) -> Drafter:
    """Checkpoints of one drafter in a run's folder."""
    drafter = Drafter(drafter_config())
    optimizer = make_optimizer(drafter, OptimConfig(lr=0.01))
    for step in steps:
        save_checkpoint(run / "checkpoints", drafter, optimizer, TrainState(step=step), contract={}, keep=9)
    return drafter


def test_an_export_holds_the_weights_and_a_config_that_engines_know(tmp_path: Path) -> None:
    drafter = saved(tmp_path, 5, 10)
    done = export(tmp_path, tmp_path / "out")
    assert done.checkpoint.name == "step-10"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in drafter.state_dict().items()
    }
    for name, value in weights.items():
        assert torch.equal(value, drafter.state_dict()[name].bfloat16()), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architectures"], config["model_type"], config["dtype"]) == (
        ["DFlashDraftModel"],
        "qwen3",
        "bfloat16",
    )
    assert DrafterConfig.load(tmp_path / "out" / "config.json") == drafter.config


def test_a_named_checkpoint_is_exported_in_the_dtype_asked_for(tmp_path: Path) -> None:
    drafter = saved(tmp_path, 5, 10)
    source = tmp_path / "checkpoints" / "step-5"
    assert export(source, tmp_path / "out", dtype="float32").checkpoint == source
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(value, drafter.state_dict()[name]) for name, value in weights.items())


def test_weights_that_are_not_the_configs_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    source = tmp_path / "checkpoints" / "step-5"
    weights = load_file(source / "model.safetensors")
    weights["fc.bias"] = weights.pop("fc.weight")
    save_file(weights, source / "model.safetensors")
    state = json.loads((source / "state.json").read_text())
    state["sizes"]["model.safetensors"] = (source / "model.safetensors").stat().st_size
    (source / "state.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match=r"fc\.weight"):
        export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_stands_in_the_way_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 5)
    (tmp_path / "out").mkdir()
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == EXIT_CONFIG
    assert "exists already" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_without_a_whole_checkpoint_is_an_error_that_says_why(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "checkpoints" / "step-5" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"step-5: model\.safetensors is 0 bytes"):
        export(tmp_path, tmp_path / "out")
