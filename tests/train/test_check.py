"""The golden numbers, and the check's own answers: beyond tolerance, broken case, JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.train.cases import double_weights, packed_anchors, packed_batch, sliding_config
from tests.train.naive import NaiveBatch, NaiveDrafter, may_attend
from trainer.check import check_case
from trainer.cli import main
from trainer.errors import ConfigError
from trainer.model import Drafter
from trainer.model_config import DrafterConfig

CASES = sorted((Path(__file__).parents[1] / "data" / "dflash").glob("case*"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_golden_numbers(case: Path) -> None:
    report = check_case(case)
    assert report.is_within, "\n".join(report.lines())
    assert not report.not_compared
    assert {"mask", "hidden", "loss_decay", "grad.fc.weight", "accept_len"} <= {d.name for d in report.differences}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_golden_numbers_by_flex_attention(case: Path, flex_uncompiled: None) -> None:
    report = check_case(case, form="flex")
    assert report.is_within, "\n".join(report.lines())
    assert all(name.startswith("grad.") for name in report.not_compared)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASES[0], tmp_path / "case"))


def change(case: Path, file: str, name: str, amount: float) -> None:
    tensors = load_file(case / file)
    tensors[name] = tensors[name] + amount
    save_file(tensors, case / file)


def test_a_difference_beyond_the_tolerance_is_named_and_exits_1(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(copied, "expected.safetensors", "grad.fc.weight", 1e-3)
    assert main(["check", str(copied), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["differences"] if not row["ok"]] == ["grad.fc.weight"]
    assert report["ok"] is False


@pytest.mark.parametrize("name", ["hidden", "weight", "ce", "loss_decay", "logits_first_block"])
def test_every_quantity_can_fail(copied: Path, name: str) -> None:
    change(copied, "expected.safetensors", name, 2e-5)
    assert [d.name for d in check_case(copied).differences if not d.is_within] == [name]


def test_what_is_not_a_number_fails_and_is_null_in_json(copied: Path) -> None:
    change(copied, "model.safetensors", "norm.weight", float("nan"))
    report = check_case(copied)
    rows = {row["name"]: row for row in report.as_dict()["differences"]}
    for name in ("hidden", "ce", "loss_decay"):
        assert (rows[name]["largest"], rows[name]["ok"]) == (None, False)


def test_the_report_for_people_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(CASES[0])]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{CASES[0].name}: all within tolerance"


def test_a_missing_file_is_a_broken_case(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "batch.safetensors").unlink()
    assert main(["check", str(copied)]) == 2
    assert "batch.safetensors" in capsys.readouterr().err


def test_missing_quantities_and_weights_are_broken_cases(copied: Path) -> None:
    tensors = load_file(copied / "expected.safetensors")
    del tensors["accept_len"]
    save_file(tensors, copied / "expected.safetensors")
    with pytest.raises(ConfigError, match="lacks accept_len"):
        check_case(copied)


def test_weights_that_do_not_fit_the_config_are_a_broken_case(copied: Path) -> None:
    path = copied / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8")) | {"intermediate_size": 65}
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ConfigError, match="does not fit"):
        check_case(copied)


@pytest.mark.parametrize("name", ["mask_sliding", "sliding_mask", "mask_sliding_attention"])
def test_a_case_with_sliding_layers_has_a_second_mask(tmp_path: Path, name: str) -> None:
    case = write_sliding_case(tmp_path / "case", mask_name=name)
    report = check_case(case)
    compared = {d.name: d for d in report.differences}
    assert compared["mask_sliding"].is_within
    assert compared["mask"].is_within
    assert compared["hidden"].is_within


def test_a_wrong_sliding_mask_is_found(tmp_path: Path) -> None:
    case = write_sliding_case(tmp_path / "case", mask_name="mask_sliding", window_of_mask=7)
    assert next(d.name for d in check_case(case).differences if not d.is_within) == "mask_sliding"


def write_sliding_case(folder: Path, *, mask_name: str, window_of_mask: int = 6) -> Path:
    """Write a case whose masks and hidden states come from the naive loops; losses are zeros and are not looked at."""
    folder.mkdir()
    config = sliding_config(is_causal=False)
    torch.manual_seed(2)
    drafter = Drafter(config)
    batch, anchors = packed_batch(), packed_anchors()
    embed, head, target = torch.randn(30, 16), torch.randn(30, 16), torch.randn(2, 24, config.context_size)
    naive_batch = NaiveBatch(
        *(t.numpy() for t in (*batch.tensors().values(), anchors.position_BN, anchors.is_valid_BN))
    )
    hidden = NaiveDrafter(double_weights(drafter.state_dict()), config).hidden(
        naive_batch, embed.double().numpy(), target.double().numpy()
    )
    slots = {name: torch.zeros(2, 6, 4) for name in ("weight", "ce")}
    save_file(
        {
            "mask": loop_mask(naive_batch, config, None),
            mask_name: loop_mask(naive_batch, config, window_of_mask),
            "hidden": torch.from_numpy(hidden).float(),
            "logits_first_block": torch.zeros(2, 4, 30),
            "label": torch.zeros(2, 6, 4, dtype=torch.int64),
            "accept_len": torch.zeros(2, 6, dtype=torch.int64),
            "accept_len_stop_at_gap": torch.zeros(2, 6, dtype=torch.int64),
            "loss_decay": torch.zeros(()),
            **slots,
            **{f"grad.{key}": torch.zeros_like(value) for key, value in drafter.state_dict().items()},
        },
        folder / "expected.safetensors",
    )
    save_file(drafter.state_dict(), folder / "model.safetensors")
    save_file({"embed_tokens.weight": embed, "lm_head.weight": head}, folder / "target_embed_lm_head.safetensors")
    save_file(
        {
            "input_ids": batch.input_ids_BS,
            "loss_mask": batch.loss_mask_BS,
            "document_ids": batch.document_ids_BS,
            "target_hidden": target,
            "anchors": anchors.position_BN,
            "anchor_valid": anchors.is_valid_BN,
        },
        folder / "batch.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
    (folder / "expected.json").write_text(json.dumps({"gamma": 4.0}), encoding="utf-8")
    return folder


def loop_mask(batch: NaiveBatch, config: DrafterConfig, window: int | None) -> torch.Tensor:
    size = config.block_size
    mask = torch.zeros(2, 6 * size, 24 + 6 * size, dtype=torch.bool)
    for row, query, key in torch.ones_like(mask).nonzero().tolist():
        block, slot = divmod(query, size)
        if batch.anchor_valid[row, block]:
            mask[row, query, key] = may_attend(
                batch, row, block, slot, key, block_size=size, window=window, causal=False
            )
    return mask
