"""The drafter against the naive loops, its decoding entry against its training entry, and its names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.cases import as_naive, double_weights, drafter_config, packed_anchors, packed_batch, sliding_config
from tests.train.naive import NaiveDrafter
from trainer.model import Drafter, RMSNorm, rotary
from trainer.model_config import DrafterConfig
from trainer.step import Frozen, StepInputs, draft_hidden, step_functions

CONFIGS = {
    "full": drafter_config(),
    "sliding, both ways": sliding_config(is_causal=False),
    "sliding, causal": sliding_config(is_causal=True),
    "window smaller than a block": sliding_config(is_causal=False, window=2),
    "only sliding": drafter_config(layer_types=("sliding_attention",) * 2, sliding_window=5, sliding_is_causal=False),
    "biased": drafter_config(attention_bias=True),
}


def make(config: DrafterConfig) -> tuple[Drafter, Frozen, StepInputs, Tensor]:
    torch.manual_seed(1)
    drafter = Drafter(config)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    if config.attention_bias:
        for layer in drafter.layers:
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                torch.nn.init.zeros_(getattr(layer.self_attn, name).bias)
    frozen = Frozen(torch.randn(config.vocab_size, 16), torch.randn(config.vocab_size, 16))
    inputs = StepInputs.make(packed_batch(), packed_anchors(), config, gamma=4.0, chunk_slots=8)
    return drafter, frozen, inputs, torch.randn(2, 24, config.context_size)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_hidden_states_equal_the_naive_loops(config: DrafterConfig) -> None:
    drafter, frozen, inputs, target_hidden = make(config)
    actual = draft_hidden(drafter, step_functions(config, "dense"), frozen, inputs, target_hidden)
    naive = NaiveDrafter(double_weights(drafter.state_dict()), config)
    expected = naive.hidden(
        as_naive(packed_batch(), packed_anchors()), frozen.embed_VH.double().numpy(), target_hidden.double().numpy()
    )
    rows = inputs.anchors.is_valid_BN.repeat_interleave(config.block_size, dim=1)
    torch.testing.assert_close(actual[rows].double(), torch.from_numpy(expected)[rows], atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_decoding_a_block_equals_training_on_it(config: DrafterConfig) -> None:
    drafter, frozen, inputs, target_hidden = make(config)
    hidden = draft_hidden(drafter, step_functions(config, "dense"), frozen, inputs, target_hidden)
    row, block, size = 1, 2, config.block_size
    anchor = int(inputs.anchors.position_BN[row, block])
    context = drafter.context_features(target_hidden[row : row + 1, :anchor])
    ids = inputs.blocks.ids_BQ[row : row + 1, block * size : (block + 1) * size]
    positions = torch.arange(anchor + size)[None]
    drafted = drafter.draft_block(context, F.embedding(ids, frozen.embed_VH), positions)
    torch.testing.assert_close(drafted[0], hidden[row, block * size : (block + 1) * size], atol=1e-5, rtol=0)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_decoding_rows_of_different_lengths_together_equals_one_by_one(config: DrafterConfig) -> None:
    drafter, frozen, _, target_hidden = make(config)
    starts, size = (5, 17), config.block_size
    embedding = frozen.embed_VH[torch.randint(0, 29, (2, size))]
    context = drafter.context_features(target_hidden)
    positions = torch.stack([torch.cat((torch.arange(24), torch.arange(start, start + size))) for start in starts])
    seen = torch.arange(24) < torch.tensor(starts)[:, None]
    together = drafter.draft_block(context, embedding, positions, seen)
    for row, start in enumerate(starts):
        alone = drafter.draft_block(
            context[row : row + 1, :start], embedding[row : row + 1], torch.arange(start + size)[None]
        )
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=0)


def test_the_flex_form_equals_the_dense_form(flex_uncompiled: None) -> None:
    for config in (CONFIGS["full"], CONFIGS["sliding, both ways"], CONFIGS["sliding, causal"]):
        drafter, frozen, inputs, target_hidden = make(config)
        with torch.no_grad():
            dense, flex = (
                draft_hidden(drafter, step_functions(config, form), frozen, inputs, target_hidden)
                for form in ("dense", "flex")
            )
        torch.testing.assert_close(flex, dense, atol=1e-5, rtol=0)


def test_blocks_do_not_see_each_other() -> None:
    config = CONFIGS["full"]
    drafter, frozen, inputs, target_hidden = make(config)
    functions = step_functions(config, "dense")
    before = draft_hidden(drafter, functions, frozen, inputs, target_hidden)
    inputs.blocks.ids_BQ[:, : config.block_size] = 3
    after = draft_hidden(drafter, functions, frozen, inputs, target_hidden)
    changed = (after - before).abs().amax(dim=-1) > 0
    assert changed[:, : config.block_size].all()
    assert not changed[:, config.block_size :].any()


def test_each_kind_of_layer_has_a_mask_and_a_layer_function_of_its_own() -> None:
    names: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        names.append(name)
        return function

    step_functions(CONFIGS["sliding, causal"], "dense", wrap=noting)
    kinds = ("full_attention", "sliding_attention")
    assert names == [*(f"mask_{kind}" for kind in kinds), *(f"layer_{kind}" for kind in kinds), "loss_chunk"]


def test_names_and_number_of_tensors_are_those_of_serving_engines() -> None:
    names = Drafter(drafter_config()).state_dict().keys()
    assert len(names) == 3 + 11 * 2
    assert "layers.1.self_attn.k_norm.weight" in names
    assert not any(name.startswith("model.") or "rotary" in name for name in names)


def test_a_cast_of_the_module_does_not_round_the_rotary_phases() -> None:
    positions = torch.tensor([[8192]])
    cos, sin = rotary(positions, head_dim=128, theta=1e6)
    exact = 8192.0 * 1e6 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert cos.dtype == torch.float32
    torch.testing.assert_close(cos[0, 0, 0, :64].double(), exact.cos(), atol=2e-3, rtol=0)
    torch.testing.assert_close(sin[0, 0, 0, :64].double(), exact.sin(), atol=2e-3, rtol=0)
    assert not dict(Drafter(drafter_config()).named_buffers())


def test_weights_stay_float32_when_bfloat16_flows_through() -> None:
    drafter, frozen, inputs, target_hidden = make(drafter_config())
    half = Frozen(frozen.embed_VH.bfloat16(), frozen.head_VH.bfloat16())
    hidden = draft_hidden(drafter, step_functions(drafter.config, "dense"), half, inputs, target_hidden.bfloat16())
    hidden.float().sum().backward()
    assert hidden.dtype == torch.bfloat16
    for parameter in drafter.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


def test_rms_norm_is_computed_in_float32() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16)  # 300 squared is beyond float16
    assert torch.equal(RMSNorm(4, 1e-6)(x), torch.ones(4, dtype=torch.float16))
