"""The attention mask against a loop over every pair, in both forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from tests.train.cases import as_naive, packed_anchors, packed_batch
from tests.train.naive import may_attend
from trainer.mask import Reach, dense_builder, flex_builder, mask_rule

SIZE = 4
REACHES = [
    Reach(SIZE),
    Reach(SIZE, window=6),
    Reach(SIZE, window=6, is_causal=True),
    Reach(SIZE, window=1),
    Reach(SIZE, window=3, is_causal=True),
]


def naive_mask(reach: Reach) -> Tensor:
    batch = as_naive(packed_batch(), packed_anchors())
    num_rows, num_blocks = batch.anchors.shape
    num_tokens = batch.input_ids.shape[1]
    out = np.zeros((num_rows, num_blocks * SIZE, num_tokens + num_blocks * SIZE), dtype=bool)
    for row, query, key in np.ndindex(*out.shape):
        block, slot = divmod(query, SIZE)
        if batch.anchor_valid[row, block]:
            out[row, query, key] = may_attend(
                batch, row, block, slot, key, block_size=SIZE, window=reach.window, causal=reach.is_causal
            )
    return torch.from_numpy(out)


@pytest.fixture
def tensors() -> tuple[Tensor, Tensor, Tensor]:
    anchors = packed_anchors().cleaned()
    return anchors.position_BN, anchors.is_valid_BN, packed_batch().document_ids_BS


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_dense_mask_equals_the_loop_on_valid_blocks(reach: Reach, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    mask = dense_builder(reach)(*tensors)[:, 0]
    rows = tensors[1].repeat_interleave(SIZE, dim=1)
    assert torch.equal(mask[rows], naive_mask(reach)[rows])


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_flex_rule_equals_the_dense_mask(reach: Reach, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    dense = dense_builder(reach)(*tensors)
    blocks = flex_builder(reach)(*tensors)
    whole = create_mask(blocks.mask_mod, B=2, H=1, Q_LEN=dense.shape[2], KV_LEN=dense.shape[3], device="cpu")
    assert torch.equal(whole, dense)


def test_a_block_that_is_not_valid_sees_its_own_slots_only(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    mask = dense_builder(Reach(SIZE))(*tensors)[:, 0]
    last = mask[:, -SIZE:]
    assert not last[:, :, :-SIZE].any()
    assert last[:, :, -SIZE:].all()


def test_no_row_of_any_mask_is_empty(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    for reach in REACHES:
        assert dense_builder(reach)(*tensors).any(dim=-1).all()


def test_the_rule_takes_indices_beyond_the_end(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    rule = mask_rule(Reach(SIZE), *tensors)
    far = torch.tensor(10_000)
    assert not rule(torch.tensor(0), torch.tensor(0), far, torch.tensor(0))
    assert not rule(torch.tensor(0), torch.tensor(0), torch.tensor(0), far)
