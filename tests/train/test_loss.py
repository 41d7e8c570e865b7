"""The chunked loss against a plain one, and its sums over ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.cases import drafter_config, packed_anchors, packed_batch
from trainer.anchors import Anchors
from trainer.blocks import IGNORED
from trainer.loss import LossSums, accept_lengths, loss_chunk, loss_sums
from trainer.sections import LossConfig
from trainer.step import StepInputs, spread_slots

HIDDEN, VOCABULARY = 16, 30


def inputs(*, chunk_slots: int, anchors: Anchors | None = None) -> StepInputs:
    return StepInputs.make(
        packed_batch(), anchors or packed_anchors(), drafter_config(), gamma=4.0, chunk_slots=chunk_slots
    )


def plain_loss(hidden: Tensor, head: Tensor, step: StepInputs) -> Tensor:
    """sum(weight * ce) over full logits of all slots."""
    logits = (hidden @ head.T).view(*step.blocks.label_BNs.shape, VOCABULARY)
    ce = F.cross_entropy(logits.flatten(0, 2), step.blocks.label_BNs.flatten(), reduction="none", ignore_index=IGNORED)
    return (ce * step.blocks.weight_BNs.flatten()).sum()


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(2, 24, HIDDEN, generator=torch.Generator().manual_seed(5)).requires_grad_()


@pytest.fixture
def head() -> Tensor:
    return torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("chunk_slots", [1, 8, 64])
def test_value_and_gradient_equal_the_plain_loss(hidden: Tensor, head: Tensor, chunk_slots: int) -> None:
    step = inputs(chunk_slots=chunk_slots)
    sums = loss_sums(hidden, head, step.supervised, chunk_slots=chunk_slots)
    (gradient,) = torch.autograd.grad(sums.weighted_ce / sums.weight, hidden)
    expected = plain_loss(hidden, head, step)
    (expected_gradient,) = torch.autograd.grad(expected / step.blocks.weight_BNs.sum(), hidden)
    torch.testing.assert_close(sums.weighted_ce, expected)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)


def test_only_chunks_with_a_supervised_slot_are_run_and_all_have_one_shape(hidden: Tensor, head: Tensor) -> None:
    shapes: list[tuple[int, ...]] = []

    def noting(rows: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shapes.append(tuple(rows.shape))
        return loss_chunk(rows, *rest)

    step = inputs(chunk_slots=4)
    loss_sums(hidden, head, step.supervised, chunk_slots=4, run_chunk=noting)
    assert shapes == [(4, HIDDEN)] * -(-step.supervised.num_rows // 4)
    assert len(shapes) < step.supervised.rows_L.numel() // 4


def test_numerators_and_denominators_of_two_ranks_add_up_to_the_whole_batch(hidden: Tensor, head: Tensor) -> None:
    step = inputs(chunk_slots=8)
    whole = loss_sums(hidden, head, step.supervised, chunk_slots=8)
    ranks: list[LossSums] = []
    for row in range(2):
        valid = packed_anchors().is_valid_BN.clone()
        valid[1 - row] = False  # a rank that holds the other row
        part = inputs(chunk_slots=8, anchors=Anchors(packed_anchors().position_BN, valid))
        ranks.append(loss_sums(hidden, head, part.supervised, chunk_slots=8))
    torch.testing.assert_close(ranks[0].weighted_ce + ranks[1].weighted_ce, whole.weighted_ce)
    assert sum(rank.weight for rank in ranks) == pytest.approx(whole.weight)


def test_a_batch_without_a_supervised_slot_gives_zero_and_no_nan(hidden: Tensor, head: Tensor) -> None:
    nothing = Anchors(packed_anchors().position_BN, torch.zeros(2, 6, dtype=torch.bool))
    step = inputs(chunk_slots=8, anchors=nothing)
    sums = loss_sums(hidden, head, step.supervised, chunk_slots=8)
    sums.weighted_ce.backward()
    assert (sums.weighted_ce.item(), sums.weight, step.supervised.num_rows) == (0.0, 0.0, 0)
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_slots_find_their_places_again(hidden: Tensor, head: Tensor) -> None:
    step = inputs(chunk_slots=8)
    sums = loss_sums(hidden, head, step.supervised, chunk_slots=8)
    ce = spread_slots(sums.ce_L, step)
    logits = (hidden @ head.T).view(2, 6, 4, VOCABULARY)
    for row, block, slot in (step.blocks.label_BNs != IGNORED).nonzero().tolist():
        expected = -logits[row, block, slot].log_softmax(-1)[step.blocks.label_BNs[row, block, slot]]
        torch.testing.assert_close(ce[row, block, slot], expected)
    assert not ce[step.blocks.label_BNs == IGNORED].any()


@pytest.mark.parametrize(
    ("correct", "supervised", "stepping_over", "stopping"),
    [
        ("-1111", "-1111", 4, 4),
        ("-1101", "-1111", 2, 2),
        ("-0111", "-1111", 0, 0),
        ("-1001", "-1011", 1, 1),
        ("-1011", "-1011", 3, 1),
        ("-0011", "-0011", 2, 0),
        ("-0000", "-0000", 0, 0),
    ],
)
def test_accept_lengths(correct: str, supervised: str, stepping_over: int, stopping: int) -> None:
    is_correct, is_supervised = (
        torch.tensor([c == "1" for c in text]).view(1, 1, -1) for text in (correct, supervised)
    )
    assert accept_lengths(is_correct, is_supervised, stop_at_gap=False).item() == stepping_over
    assert accept_lengths(is_correct, is_supervised, stop_at_gap=True).item() == stopping


def test_gamma_is_the_published_one_unless_given() -> None:
    assert [LossConfig().gamma_for(size) for size in (16, 10, 8)] == [7.0, 5.0, 4.0]
    assert LossConfig(gamma=2.5).gamma_for(16) == 2.5
    with pytest.raises(ValueError, match="gamma must be positive"):
        LossConfig(gamma=0.0)
