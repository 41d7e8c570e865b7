"""A recipe: every choice of one training run. It composes the parts' own configurations and does nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainer.config import apply_overrides, build, read_mapping
from trainer.errors import ConfigError
from trainer.model_config import DrafterConfig, DrafterRecipe
from trainer.sections import (
    AnchorsConfig,
    CheckpointConfig,
    CompileConfig,
    CorpusConfig,
    DataConfig,
    DecodeConfig,
    LogConfig,
    LossConfig,
    OptimConfig,
    VerifierConfig,
)

if TYPE_CHECKING:  # torch takes seconds to load, and a wrong recipe is told before
    import torch

    from trainer.warmup import StepShape

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
        if self.compile.cuda_graphs and self.device == "cpu":
            raise ValueError("compile.cuda_graphs needs a GPU, and device is cpu")

    def drafter_config(self) -> DrafterConfig:
        """Return the drafter's config, from the sizes of the verifier; raises ConfigError where they do not fit."""
        if self.verifier.path is None:
            shape = self.verifier.demo.shape()
        else:
            from trainer.verifier import verifier_shape

            shape = verifier_shape(self.verifier)
        try:
            return self.drafter.config(shape)
        except ValueError as error:
            raise ConfigError(f"drafter: {error}") from error

    def step_shape(self, device: torch.device) -> StepShape:
        """Return the fixed shape of a training step; raises ConfigError where flex attention cannot tile it."""
        from trainer.device import resolve_dtype
        from trainer.warmup import StepShape

        if device.type == "cuda":
            self.check_tiles()
        return StepShape(
            rows=self.data.rows,
            row_tokens=self.data.row_tokens,
            anchors_per_row=self.anchors.per_row,
            chunk_slots=self.loss.chunk_slots,
            dtype=resolve_dtype(self.dtype, device),
        )

    def check_tiles(self) -> None:
        """Raise ConfigError where a step on a GPU would not be of whole tiles."""
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
