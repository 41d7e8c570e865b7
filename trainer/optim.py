"""The optimizer and its schedule: AdamW on float32 masters, linear warmup, cosine decay, clipping by global norm."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from trainer.sections import OptimConfig


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over the model's parameters; norms and biases (one dimension) do not decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def learning_rate(step: int, *, num_steps: int, config: OptimConfig) -> float:
    """Return the rate of update `step`, counted from 0: linear warmup to `lr`, then cosine to the final share of it."""
    num_warmup = math.ceil(config.warmup_share * num_steps)
    if step < num_warmup:
        return config.lr * (step + 1) / num_warmup
    progress = min(1.0, (step - num_warmup) / max(1, num_steps - num_warmup))
    share = config.final_lr_share + (1 - config.final_lr_share) * 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * share


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[Tensor], clip_norm: float) -> Tensor:
    """Scale the gradients down to `clip_norm` where their global norm is larger; return the norm before."""
    return nn.utils.clip_grad_norm_(parameters, clip_norm)
