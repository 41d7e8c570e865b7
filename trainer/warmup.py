"""Runs every compiled function of a recipe once, forward and backward, on made-up inputs of the recipe's exact shapes.

Prewarming and training warm through this one function, so that what the first compiled is what the second needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.anchors import draw_anchors
from trainer.attention import attention_form
from trainer.batch import Batch
from trainer.compile import Discipline
from trainer.errors import ConfigError
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.sections import CompileConfig
from trainer.step import Frozen, Functions, StepInputs, step_functions, step_loss


def open_discipline(
    config: CompileConfig,
    device: torch.device,
    *,
    replica: str | None = None,
    on_compile: Callable[[str], None] | None = None,
) -> Discipline:
    """Return the discipline of a recipe on a device; raises ConfigError for CUDA graphs without a GPU."""
    if config.cuda_graphs and device.type != "cuda":
        raise ConfigError(f"compile.cuda_graphs needs a GPU, and this run is on the {device.type}")
    return Discipline(device.type, cuda_graphs=config.cuda_graphs, replica=replica, on_compile=on_compile)


@dataclass(frozen=True)
class StepShape:
    """All that the shape of a step depends on beside the drafter: rows, tokens, anchors a row, slots a chunk, dtype."""

    rows: int
    row_tokens: int
    anchors_per_row: int
    chunk_slots: int
    dtype: torch.dtype


def compile_step(config: DrafterConfig, device: torch.device, discipline: Discipline) -> Functions:
    """Return the step's functions, compiled for `device` under a discipline, still cold."""
    return step_functions(config, attention_form(device), wrap=discipline.add)


def warm_step(drafter: Drafter, functions: Functions, shape: StepShape, device: torch.device) -> None:
    """Run one step forward and backward on made-up inputs; weights and random numbers are left as they were."""
    generator = torch.Generator().manual_seed(0)
    config = drafter.config

    def noise(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device, shape.dtype)

    frozen = Frozen(noise(config.vocab_size, config.hidden_size), noise(config.vocab_size, config.hidden_size))
    inputs = made_up_inputs(config, shape).to(device)
    hidden_BSC = noise(shape.rows, shape.row_tokens, config.context_size)
    sums = step_loss(drafter, functions, frozen, inputs, hidden_BSC, chunk_slots=shape.chunk_slots)
    torch.autograd.backward(sums.weighted_ce / sums.weight)
    drafter.zero_grad(set_to_none=True)


def made_up_inputs(config: DrafterConfig, shape: StepShape) -> StepInputs:
    """Return the inputs of a step whose rows are one supervised document each."""
    size = (shape.rows, shape.row_tokens)
    batch = Batch(*(torch.full(size, value, dtype=torch.int64) for value in (0, 1, 0)))
    anchors = draw_anchors(batch, per_row=shape.anchors_per_row, seed=0, step=0)
    return StepInputs.make(batch, anchors, config, gamma=1.0, chunk_slots=shape.chunk_slots)
