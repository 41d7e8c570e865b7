"""A recipe: every choice of one training run. It composes the parts' own configurations and does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from trainer.anchors import AnchorsConfig
from trainer.checkpoint import CheckpointConfig
from trainer.config import apply_overrides, build, read_mapping
from trainer.corpus import CorpusConfig
from trainer.data import DataConfig
from trainer.decode import DecodeConfig
from trainer.device import resolve_dtype
from trainer.errors import ConfigError
from trainer.loss import LossConfig
from trainer.metrics import LogConfig
from trainer.model_config import DrafterConfig, DrafterRecipe
from trainer.optim import OptimConfig
from trainer.verifier import VerifierConfig, verifier_shape
from trainer.warmup import CompileConfig, StepShape

FLEX_TILE = 128


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run. `resume` is `auto` (newest good checkpoint here), `none`, or a checkpoint's folder."""

    name: str
    steps: int
    drafter: DrafterRecipe
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    resume: str = "auto"
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    data: DataConfig = field(default_factory=DataConfig)
    anchors: AnchorsConfig = field(default_factory=AnchorsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("steps must be at least 1")
        if self.seed < 0:
            raise ValueError("seed must not be negative")

    def drafter_config(self) -> DrafterConfig:
        """Return the drafter's config, from the sizes of the verifier; raises ConfigError where they do not fit."""
        try:
            return self.drafter.config(verifier_shape(self.verifier))
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"drafter: {error}") from error

    def step_shape(self, device: torch.device) -> StepShape:
        """Return the fixed shape of a training step; raises ConfigError where flex attention cannot tile it."""
        if device.type == "cuda":
            self._check_tiles()
        return StepShape(
            rows=self.data.rows,
            row_tokens=self.data.row_tokens,
            anchors_per_row=self.anchors.per_row,
            chunk_slots=self.loss.chunk_slots,
            dtype=resolve_dtype(self.dtype, device),
        )

    def _check_tiles(self) -> None:
        num_slots = self.anchors.per_row * self.drafter.block_size
        for name, size in (("data.row_tokens", self.data.row_tokens), ("anchors.per_row * block_size", num_slots)):
            if size % FLEX_TILE:
                raise ConfigError(f"{name} is {size}, and flex attention needs a multiple of {FLEX_TILE} on a GPU")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a YAML file with `key=value` overrides over it; raises ConfigError."""
    try:
        return build(Recipe, apply_overrides(read_mapping(path), overrides))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
