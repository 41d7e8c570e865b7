"""The drafter's config in Hugging Face form, both ways, and what a recipe leaves to the verifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.cases import drafter_config, sliding_config
from trainer.model_config import DrafterConfig, DrafterRecipe, spread_target_layers
from trainer.shape import VerifierShape

CASES = sorted((Path(__file__).parents[1] / "data" / "dflash").glob("case*/config.json"))
VERIFIER = VerifierShape(
    hidden_size=64,
    vocab_size=100,
    num_hidden_layers=36,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=128,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.parent.name)
def test_a_published_config_survives_reading_and_writing(path: Path) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    written = DrafterConfig.from_json(raw).to_json()
    assert written == {key: value for key, value in raw.items() if key != "auto_map"}


@pytest.mark.parametrize("config", [drafter_config(), sliding_config(is_causal=False), sliding_config(is_causal=True)])
def test_a_config_reads_back_equal(config: DrafterConfig) -> None:
    assert DrafterConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_sliding_drafter_that_looks_both_ways_says_so_to_the_engines() -> None:
    assert sliding_config(is_causal=False).to_json()["is_causal"] is False
    assert "is_causal" not in sliding_config(is_causal=True).to_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope type 'yarn'"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_window must be set"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types must be of"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"num_target_layers": 3}, "target_layer_ids must be within 0..2"),
    ],
)
def test_what_this_drafter_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrafterConfig.from_json(drafter_config().to_json() | changes)


def test_other_spellings_of_published_configs() -> None:
    raw = drafter_config().to_json()
    del raw["rope_theta"], raw["dflash_config"]["block_size"]
    raw["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
    assert DrafterConfig.from_json(raw).rope_theta == 5e5
    assert DrafterConfig.from_json(raw).block_size == 4
    raw |= {"layer_types": None, "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}
    assert DrafterConfig.from_json(raw).layer_types == ("full_attention", "sliding_attention")


@pytest.mark.parametrize(
    ("num_layers", "num_ids", "expected"),
    [(36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,)), (4, 2, (0, 2)), (3, 2, (0, 1)), (8, 3, (1, 3, 5))],
)
def test_captured_layers_are_spread_over_the_verifier(num_layers: int, num_ids: int, expected: tuple[int, ...]) -> None:
    assert spread_target_layers(num_layers, num_ids) == expected


def test_a_recipe_takes_from_the_verifier_what_it_leaves_open() -> None:
    config = DrafterRecipe(mask_token_id=99, num_layers=2, intermediate_size=32).config(VERIFIER)
    assert (config.hidden_size, config.vocab_size, config.rope_theta) == (64, 100, 1e6)
    assert (config.intermediate_size, config.num_attention_heads, config.block_size) == (32, 8, 16)
    assert config.target_layer_ids == (1, 33)
    assert config.layer_types == ("full_attention",) * 2


def test_a_mask_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="mask_token_id 100 is outside the vocabulary of 100"):
        DrafterRecipe(mask_token_id=100).config(VERIFIER)
