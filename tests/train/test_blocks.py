"""What a block reads and must predict, against the naive loops."""

from __future__ import annotations

import math

import torch

from tests.train.cases import as_naive, packed_anchors, packed_batch
from tests.train.naive import label
from trainer.blocks import IGNORED, Blocks, gather_supervised, make_blocks

SIZE, MASK_ID, GAMMA = 4, 29, 3.0


def blocks() -> Blocks:
    return make_blocks(packed_batch(), packed_anchors(), block_size=SIZE, mask_token_id=MASK_ID, gamma=GAMMA)


def test_labels_equal_the_loop() -> None:
    naive = as_naive(packed_batch(), packed_anchors())
    for row in range(2):
        for block in range(6):
            expected = [label(naive, row, block, slot) for slot in range(SIZE)]
            assert blocks().label_BNs[row, block].tolist() == expected


def test_weights_decay_from_slot_one_and_are_zero_where_not_supervised() -> None:
    made = blocks()
    for slot in range(1, SIZE):
        on = made.label_BNs[..., slot] != IGNORED
        expected = torch.full_like(made.weight_BNs[..., slot], math.exp(-(slot - 1) / GAMMA))
        torch.testing.assert_close(made.weight_BNs[..., slot], expected.where(on, 0))
    assert not made.weight_BNs[..., 0].any()


def test_slot_zero_is_the_anchor_token_and_the_rest_are_masks() -> None:
    batch, anchors = packed_batch(), packed_anchors()
    ids = blocks().ids_BQ.view(2, 6, SIZE)
    assert (ids[..., 1:] == MASK_ID).all()
    for row in range(2):
        for block in range(5):
            assert ids[row, block, 0] == batch.input_ids_BS[row, anchors.position_BN[row, block]]


def test_positions_are_row_indices_and_then_anchor_plus_slot() -> None:
    positions = blocks().positions_BP
    assert positions[0, :24].tolist() == list(range(24))
    assert positions[0, 24 + SIZE : 24 + 2 * SIZE].tolist() == [7, 8, 9, 10]


def test_gathered_slots_keep_order_and_have_a_length_that_only_shapes_decide() -> None:
    made = blocks()
    gathered = gather_supervised(made, multiple_of=8)
    on = made.label_BNs.flatten() != IGNORED
    assert gathered.num_rows == int(on.sum())
    assert gathered.rows_L[: gathered.num_rows].tolist() == on.nonzero().flatten().tolist()
    assert gathered.label_L[: gathered.num_rows].tolist() == made.label_BNs.flatten()[on].tolist()
    assert gathered.rows_L.numel() == 40  # 2 rows * 6 blocks * 3 slots, rounded up to chunks of 8
    assert not gathered.weight_L[gathered.num_rows :].any()
    assert math.isclose(gathered.total_weight, float(made.weight_BNs.sum()), rel_tol=1e-6)
