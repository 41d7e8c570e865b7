"""Where blocks start: fixed slots, no short document starved, a pure function of seed and step."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.train.cases import packed_batch
from trainer.anchors import candidates, draw_anchors, fold_in
from trainer.batch import Batch


def one_row(lengths: list[int], *, row_tokens: int) -> Batch:
    """A row of fully supervised documents and padding."""
    document = torch.full((1, row_tokens), -1)
    start = 0
    for index, length in enumerate(lengths):
        document[0, start : start + length] = index
        start += length
    return Batch(torch.zeros(1, row_tokens, dtype=torch.int64), (document >= 0).long(), document)


def counts_by_document(batch: Batch, position_BN: Tensor, is_valid_BN: Tensor) -> list[int]:
    drawn = batch.document_ids_BS.gather(1, position_BN)[is_valid_BN]
    return torch.bincount(drawn).tolist()


def test_a_candidate_and_the_token_after_it_are_supervised_in_one_document() -> None:
    batch = packed_batch()
    found = candidates(batch)
    for row in range(2):
        for p in range(24):
            fits = p + 1 < 24 and all(
                (
                    bool(batch.loss_mask_BS[row, p]),
                    bool(batch.loss_mask_BS[row, p + 1]),
                    bool(batch.document_ids_BS[row, p] == batch.document_ids_BS[row, p + 1]),
                    bool(batch.document_ids_BS[row, p] >= 0),
                )
            )
            assert bool(found[row, p]) == fits


def test_the_number_of_slots_is_fixed_however_few_fit() -> None:
    for lengths in ([], [1], [2], [3, 30], [60]):
        anchors = draw_anchors(one_row(lengths, row_tokens=64), per_row=80, seed=1, step=0)
        assert anchors.position_BN.shape == anchors.is_valid_BN.shape == (1, 80)
        assert int(anchors.is_valid_BN.sum()) == sum(max(0, length - 1) for length in lengths)


def test_drawn_positions_are_candidates_sorted_and_never_twice() -> None:
    batch = packed_batch()
    for step in range(20):
        anchors = draw_anchors(batch, per_row=6, seed=3, step=step)
        for row in range(2):
            drawn = anchors.position_BN[row][anchors.is_valid_BN[row]].tolist()
            assert drawn == sorted(set(drawn))
            assert candidates(batch)[row, drawn].all()
        assert torch.equal(anchors.is_valid_BN.long().sort(descending=True).values, anchors.is_valid_BN.long())


def test_short_documents_get_as_many_as_long_ones_up_to_all_they_have() -> None:
    batch = one_row([4, 200, 41], row_tokens=256)
    anchors = draw_anchors(batch, per_row=33, seed=0, step=5)
    assert counts_by_document(batch, anchors.position_BN, anchors.is_valid_BN) == [3, 15, 15]


def test_a_seed_and_step_give_the_same_anchors_and_another_step_others() -> None:
    batch = packed_batch()
    first, again = (draw_anchors(batch, per_row=6, seed=3, step=7) for _ in range(2))
    assert torch.equal(first.position_BN, again.position_BN)
    others = [draw_anchors(batch, per_row=6, seed=3, step=step).position_BN for step in range(8, 16)]
    assert any(not torch.equal(first.position_BN, other) for other in others)
    assert not torch.equal(others[0], draw_anchors(batch, per_row=6, seed=3, step=8, rank=1).position_BN)


def test_every_candidate_is_drawn_as_often_as_the_next() -> None:
    batch = one_row([41], row_tokens=48)
    count = torch.zeros(48)
    num_draws = 2000
    for step in range(num_draws):
        anchors = draw_anchors(batch, per_row=10, seed=11, step=step)
        count[anchors.position_BN[anchors.is_valid_BN]] += 1
    share = count[:40] / num_draws
    assert (share - 0.25).abs().max() < 0.05
    assert not count[40:].any()


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    draw_anchors(packed_batch(), per_row=6, seed=3, step=7)
    assert torch.equal(before, torch.get_rng_state())


def test_folded_seeds_of_neighbours_differ() -> None:
    seeds = {fold_in(seed, step, rank) for seed in range(10) for step in range(100) for rank in range(4)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)
