"""Compares this trainer with the golden numbers of a case folder, through the very functions that training runs.

Only rows of valid blocks are compared, since the others mean nothing; loss and gradients show whether they leak.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trainer.anchors import Anchors
from trainer.attention import AttentionForm
from trainer.batch import Batch
from trainer.blocks import IGNORED
from trainer.errors import ConfigError
from trainer.loss import LossSums, accept_lengths, loss_sums
from trainer.mask import Reach, dense_builder
from trainer.model import Drafter
from trainer.model_config import DrafterConfig
from trainer.step import Frozen, StepInputs, Wrap, draft_hidden, spread_slots, step_functions

CPU = torch.device("cpu")
DEFAULT_TOLERANCE = 1e-5
CHUNK_SLOTS = 32
_FILES = ("batch", "expected", "model", "target_embed_lm_head")
_EXACT = ("mask", "mask_sliding", "label", "accept_len", "accept_len_stop_at_gap")
_FLOAT = ("hidden", "logits_first_block", "weight", "ce", "loss_decay")


@dataclass(frozen=True)
class Case:
    """A golden case as plain values."""

    config: DrafterConfig
    weights: dict[str, Tensor]
    frozen: Frozen
    inputs: StepInputs
    target_hidden_BSC: Tensor
    expected: dict[str, Tensor]
    tolerance: float

    def to(self, device: torch.device) -> Case:
        """Return the case with what is computed from on `device`; what is expected stays on the host."""
        frozen = Frozen(self.frozen.embed_VH.to(device), self.frozen.head_VH.to(device))
        hidden_BSC = self.target_hidden_BSC.to(device)
        return replace(self, frozen=frozen, inputs=self.inputs.to(device), target_hidden_BSC=hidden_BSC)


@dataclass(frozen=True)
class Difference:
    """The largest absolute difference of one quantity, and what is allowed (0: must be equal)."""

    name: str
    largest: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """True if the difference is a number within the tolerance."""
        return self.largest <= self.tolerance


@dataclass(frozen=True)
class Report:
    """The differences of one case, and the quantities in it that nothing here computes."""

    case: str
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]

    @property
    def is_within(self) -> bool:
        """True if every quantity is within its tolerance."""
        return all(item.is_within for item in self.differences)

    def lines(self) -> list[str]:
        """Return one line a quantity, and a last line with the answer."""
        width = max(len(item.name) for item in self.differences)
        lines = [
            f"{item.name:<{width}}  {item.largest:9.2e}  {'ok' if item.is_within else 'BEYOND'} ({item.tolerance:g})"
            for item in self.differences
        ]
        lines += [f"{name:<{width}}  not compared" for name in self.not_compared]
        num_beyond = sum(not item.is_within for item in self.differences)
        answer = f"{num_beyond} of {len(self.differences)} beyond tolerance" if num_beyond else "all within tolerance"
        return [*lines, f"{self.case}: {answer}"]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as one JSON document; a difference that is not finite becomes null."""
        rows = [
            {
                "name": item.name,
                "largest": item.largest if math.isfinite(item.largest) else None,
                "tolerance": item.tolerance,
                "ok": item.is_within,
            }
            for item in self.differences
        ]
        head = {"schema": 1, "case": self.case, "ok": self.is_within}
        return {**head, "differences": rows, "not_compared": list(self.not_compared)}


def check_case(
    folder: Path, *, form: AttentionForm = "dense", wrap: Wrap | None = None, device: torch.device = CPU
) -> Report:
    """Return the difference of every quantity of a case; raises ConfigError where the case itself is broken.

    The flex form has no backward on the CPU, so it is compared there without gradients.
    """
    case = load_case(folder)
    values = compute(case.to(device), form=form, wrap=wrap)
    differences = tuple(_differences(case, {name: value.cpu() for name, value in values.items()}))
    compared = {item.name for item in differences}
    return Report(folder.name, differences, tuple(sorted(case.expected.keys() - compared)))


def load_case(folder: Path) -> Case:
    """Read a case folder; raises ConfigError naming the file or tensor that is missing or wrong."""
    try:
        return _load_case(folder)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ConfigError(f"broken case {folder}: {type(error).__name__}: {error}") from error


def _load_case(folder: Path) -> Case:
    tensors = {name: load_file(folder / f"{name}.safetensors") for name in _FILES}
    facts = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    config = DrafterConfig.load(folder / "config.json")
    raw = tensors["batch"]
    ids = raw["input_ids"]
    batch = Batch(ids, raw["loss_mask"].long(), raw.get("document_ids", torch.zeros_like(ids)))
    anchors = Anchors(raw["anchors"], raw["anchor_valid"].bool())
    inputs = StepInputs.make(batch, anchors, config, gamma=float(facts["gamma"]), chunk_slots=CHUNK_SLOTS)
    head = tensors["target_embed_lm_head"]
    return Case(
        config=config,
        weights=tensors["model"],
        frozen=Frozen(head["embed_tokens.weight"], head["lm_head.weight"]),
        inputs=inputs,
        target_hidden_BSC=raw["target_hidden"],
        expected=_expected(tensors["expected"], config, tensors["model"]),
        tolerance=float(facts.get("tolerance", DEFAULT_TOLERANCE)),
    )


def _expected(raw: Mapping[str, Tensor], config: DrafterConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the expected values under this module's names; raises KeyError where a quantity is missing."""
    expected = {("mask_sliding" if _is_sliding_mask(name) else name): value for name, value in raw.items()}
    wanted = {*_EXACT, *_FLOAT, *(f"grad.{name}" for name in weights)}
    if "sliding_attention" not in config.layer_types:
        wanted.remove("mask_sliding")
    if missing := sorted(wanted - expected.keys()):
        raise KeyError(f"expected.safetensors lacks {', '.join(missing)}")
    return expected


def _is_sliding_mask(name: str) -> bool:
    """Return whether a name means the mask of sliding layers: the only mask that is not plainly called `mask`."""
    return "mask" in name and name not in ("mask", "loss_mask") and not name.startswith("grad.")


def compute(case: Case, *, form: AttentionForm, wrap: Wrap | None = None) -> dict[str, Tensor]:
    """Return every quantity of the case as this trainer computes it."""
    functions = step_functions(case.config, form, **({} if wrap is None else {"wrap": wrap}))
    device = case.target_hidden_BSC.device
    drafter = Drafter(case.config).to(device)
    has_backward = form == "dense" or device.type != "cpu"
    drafter.load_weights(case.weights, place="model.safetensors")
    with torch.set_grad_enabled(has_backward):
        hidden_BQH = draft_hidden(drafter, functions, case.frozen, case.inputs, case.target_hidden_BSC)
        sums = loss_sums(
            hidden_BQH, case.frozen.head_VH, case.inputs.supervised, chunk_slots=CHUNK_SLOTS, run_chunk=functions.chunk
        )
    loss = sums.weighted_ce / sums.weight
    values = {**_masks(case), **_slot_values(case, sums), "loss_decay": loss.detach(), "hidden": hidden_BQH.detach()}
    first_block = values["hidden"][:, : case.config.block_size]
    values["logits_first_block"] = F.linear(first_block, case.frozen.head_VH)
    if has_backward:
        torch.autograd.backward(loss)
        values |= {f"grad.{name}": _gradient(weight) for name, weight in drafter.named_parameters()}
    return values


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _masks(case: Case) -> dict[str, Tensor]:
    anchors, document_BS = case.inputs.anchors, case.inputs.batch.document_ids_BS
    reaches = {"mask": Reach(block_size=case.config.block_size)}
    if "sliding_attention" in case.config.layer_types:
        reaches["mask_sliding"] = Reach.of(case.config, "sliding_attention")
    return {
        name: dense_builder(reach)(anchors.position_BN, anchors.is_valid_BN, document_BS)[:, 0]
        for name, reach in reaches.items()
    }


def _slot_values(case: Case, sums: LossSums) -> dict[str, Tensor]:
    label_BNs = case.inputs.blocks.label_BNs
    is_correct = spread_slots(sums.is_correct_L, case.inputs)
    return {
        "label": label_BNs,
        "weight": case.inputs.blocks.weight_BNs,
        "ce": spread_slots(sums.ce_L, case.inputs),
        "accept_len": accept_lengths(is_correct, label_BNs != IGNORED, stop_at_gap=False),
        "accept_len_stop_at_gap": accept_lengths(is_correct, label_BNs != IGNORED, stop_at_gap=True),
    }


def _differences(case: Case, actual: Mapping[str, Tensor]) -> Iterator[Difference]:
    for name, value in actual.items():
        expected = case.expected[name]
        if expected.shape != value.shape:
            raise ConfigError(f"broken case: {name} has shape {list(expected.shape)}, computed {list(value.shape)}")
        tolerance = 0.0 if name in _EXACT else case.tolerance
        yield Difference(name, _largest(value, expected, _valid_part(name, case)), tolerance)


def _valid_part(name: str, case: Case) -> Tensor | None:
    """Return the index of what is compared: rows of valid blocks; None for what has no blocks."""
    valid_BN = case.inputs.anchors.is_valid_BN
    if name in ("mask", "mask_sliding", "hidden"):
        return valid_BN.repeat_interleave(case.config.block_size, dim=1)
    if name == "logits_first_block":
        return valid_BN[:, 0]
    return None if name == "loss_decay" or name.startswith("grad.") else valid_BN


def _largest(actual: Tensor, expected: Tensor, part: Tensor | None) -> float:
    """Return the largest absolute difference; not-a-number anywhere counts as infinite."""
    difference = (actual.double() - expected.double()).abs()
    if part is not None:
        difference = difference[part]
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0
