"""Ranks as real processes over gloo: their gradient is that of one rank with the joined batch, and nobody hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.until import until
from tests.train.joined_batch import gradients_of
from tests.train.ranks import run_as_ranks
from trainer.errors import ConfigError
from trainer.ranks import PeerLost, Ranks, Share, buckets


@pytest.mark.parametrize(("num_ranks", "num_empty_rows"), [(2, 0), (3, 0), (3, 2)])
def test_the_gradient_of_all_ranks_is_that_of_one_with_the_joined_batch(
    tmp_path: Path, num_ranks: int, num_empty_rows: int
) -> None:
    def work(ranks: Ranks) -> None:
        save_file(gradients_of(ranks, num_empty_rows=num_empty_rows), tmp_path / f"{ranks.rank}.safetensors")

    assert run_as_ranks(num_ranks, work) == [0] * num_ranks
    alone = gradients_of(Ranks(), num_empty_rows=num_empty_rows)
    assert alone["fc.weight"].abs().max() > 1e-3
    for rank in range(num_ranks):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6)


def test_a_rank_whose_peer_dies_is_told_and_not_left_waiting(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        ranks.agree(Share(1.0, 1, 1))
        if not ranks.is_leader:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLost, match="rank 0 lost another rank"):
            ranks.agree(Share(1.0, 1, 1))
        (tmp_path / "told").touch()
        os._exit(0)

    assert run_as_ranks(2, work) == [0, -signal.SIGKILL]
    assert (tmp_path / "told").exists()


def test_the_others_wait_until_the_leader_is_done_but_not_forever(tmp_path: Path) -> None:
    def work(ranks: Ranks) -> None:
        with ranks.leader_first("writing", timeout_s=150.0):
            if ranks.is_leader:
                (tmp_path / "written").touch()
            assert (tmp_path / "written").exists()
        if not ranks.is_leader:
            with pytest.raises(PeerLost, match=r"rank 0 was not done with 'nothing' after 0\.2 s"):
                ranks._wait_for(0, "nothing", 0.2)

    assert run_as_ranks(2, work) == [0, 0]


def test_the_first_rank_of_each_node_goes_before_those_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def work(ranks: Ranks) -> None:
        mine, node = tmp_path / str(ranks.rank), ranks.rank // 2
        if ranks.rank == 0:  # the other node does not wait for this one
            until((tmp_path / "3").exists, 150.0)
        with ranks.node_leader_first("writing", timeout_s=150.0):
            assert ranks.rank in (0, 2) or (tmp_path / str(2 * node)).exists()
            mine.touch()

    assert run_as_ranks(4, work) == [0] * 4


def test_ranks_that_do_not_agree_are_all_told() -> None:
    def work(ranks: Ranks) -> None:
        ranks.agree_on("the step", 7)
        with pytest.raises(ConfigError, match=r"the step is .* and on others from 0 to 2: all nodes must share"):
            ranks.agree_on("the step", ranks.rank)

    assert run_as_ranks(3, work) == [0, 0, 0]


def test_wishes_and_weights_of_all_ranks_add_up() -> None:
    def work(ranks: Ranks) -> None:
        mine = Share(0.25 * (ranks.rank + 1), ranks.rank, 10, ranks.rank == 1)
        assert ranks.agree(mine) == Share(1.5, 3, 30, 1)
        layer = nn.Linear(2, 2)
        nn.init.constant_(layer.weight, ranks.rank + 5)
        ranks.share_weights(layer)
        assert layer.weight.eq(5).all()

    assert run_as_ranks(3, work) == [0, 0, 0]


def test_a_group_of_one_adds_up_to_itself() -> None:
    ranks, mine = Ranks(), Share(1.5, 3, 40, True)
    assert ranks.is_leader
    assert ranks.agree(mine) is mine
    with ranks.leader_first("anything", timeout_s=0.0):
        pass


def test_buckets_keep_order_size_and_dtype() -> None:
    sizes = [(4, torch.float32), (4, torch.float32), (9, torch.float32), (1, torch.float64), (1, torch.float64)]
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size, dtype in sizes]
    assert [[one.numel() for one in bucket] for bucket in buckets(parameters, max_numel=8)] == [[4, 4], [9], [1, 1]]
    assert list(buckets([])) == []
