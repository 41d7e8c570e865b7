"""What the ranks of one run say to each other: sums, whose turn it is, and when all of them stop.

Every rank makes the same calls in the same order. A wait for another rank is a poll of the store, so that a signal is
heard meanwhile; only sums block. One process alone is a group of one, and then nothing here costs anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from trainer.errors import ConfigError, TrainerError

POLL_S = 0.1
# Longer than rank 0 takes for a checkpoint while the others wait for it in a sum.
SUM_TIMEOUT = timedelta(minutes=30)
# How long the others wait for rank 0, each for its own reason: a cold compile of a large drafter takes many minutes,
# and preparing may have the verifier answer all prompts.
WARM_TIMEOUT_S = 2 * 3600.0
PREPARE_TIMEOUT_S = 7 * 24 * 3600.0
BUCKET_NUMEL = 16 * 2**20


class PeerLost(TrainerError):
    """Another rank is gone or silent; what ended it says why, this rank only saw it."""


@dataclass(frozen=True)
class Share:
    """What a rank brings to a step, or what all bring together: the loss's weight, slots, tokens, wishes to stop."""

    weight: float
    num_slots: int
    num_tokens: int
    num_stops: int = 0


class Store(Protocol):
    """The keys that ranks share."""

    def set(self, key: str, value: str) -> None:
        """Set a key for all ranks."""

    def check(self, keys: list[str]) -> bool:
        """Whether all the keys are set."""
        ...


class Ranks:
    """This process among the ranks of its run."""

    def __init__(
        self, rank: int = 0, size: int = 1, store: Store | None = None, *, ranks_a_node: int | None = None
    ) -> None:
        self.rank, self.size, self._store = rank, size, store
        self._node_leader = rank - rank % (ranks_a_node or size)

    @property
    def is_leader(self) -> bool:
        """True on the rank that evaluates, talks and saves."""
        return self.rank == 0

    @property
    def name(self) -> str | None:
        """How messages call this rank; None where there is no other."""
        return f"rank {self.rank}" if self.size > 1 else None

    def agree(self, mine: Share) -> Share:
        """Return the sum of what all ranks bring."""
        if self.size == 1:
            return mine
        total = torch.tensor(astuple(mine), dtype=torch.float64)
        self.add_up(total)
        weight, *counts = total.tolist()
        return Share(weight, *(round(count) for count in counts))

    def agree_on(self, what: str, value: int) -> None:
        """Make sure that all ranks hold the same value; raises ConfigError on all of them where they do not."""
        if self.size == 1:
            return
        ends = torch.tensor([value, -value], dtype=torch.int64)
        with _peers_named(f"rank {self.rank}"):
            dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        highest, lowest = ends[0].item(), -ends[1].item()
        if highest != lowest:
            raise ConfigError(
                f"{what} is {value} on rank {self.rank}, and on others from {lowest} to {highest}: "
                "all nodes must share the folder of the run"
            )

    def meet(self) -> None:
        """Wait until all ranks are here, so that what follows begins at once; raises PeerLost where one is gone."""
        self.agree(Share(0.0, 0, 0))

    def add_up(self, values: Tensor) -> None:
        """Replace `values` by their sum over all ranks; raises PeerLost where one is gone."""
        if self.size > 1:
            with _peers_named(f"rank {self.rank}"):
                dist.all_reduce(values)

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all ranks; a rank that has none brings zeros."""
        if self.size == 1:
            return
        for bucket in buckets([parameter for parameter in parameters if parameter.requires_grad]):
            parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in bucket]
            flat = torch.cat([part.flatten() for part in parts])
            self.add_up(flat)
            for parameter, summed in zip(bucket, torch.split(flat, [one.numel() for one in bucket]), strict=True):
                parameter.grad = summed.view_as(parameter)

    def share_weights(self, module: nn.Module) -> None:
        """Give every rank the leader's weights."""
        if self.size > 1:
            with _peers_named(f"rank {self.rank}"), torch.no_grad():
                for value in module.state_dict().values():
                    dist.broadcast(value, src=0)

    def leader_first(self, what: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Let the leader through, and the others once it is done; raises PeerLost after `timeout_s`."""
        return self._first(0, what, timeout_s)

    def node_leader_first(self, what: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Let one rank of each node through, and the others of its node once it is done: for what fills its disk."""
        return self._first(self._node_leader, what, timeout_s)

    @contextmanager
    def _first(self, leader: int, what: str, timeout_s: float) -> Iterator[None]:
        if self.rank != leader:
            self._wait_for(leader, what, timeout_s)
        yield
        if self.rank == leader and self._store is not None:
            self._store.set(f"{what} by {leader}", "done")

    def _wait_for(self, leader: int, what: str, timeout_s: float) -> None:
        assert self._store is not None
        deadline = time.monotonic() + timeout_s
        with _peers_named(f"rank {self.rank}"):
            while not self._store.check([f"{what} by {leader}"]):
                if time.monotonic() > deadline:
                    raise PeerLost(f"rank {leader} was not done with {what!r} after {timeout_s:g} s")
                time.sleep(POLL_S)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()


@contextmanager
def _peers_named(who: str) -> Iterator[None]:
    """Tell a broken connection from an error of one's own."""
    try:
        yield
    except RuntimeError as error:  # all of torch.distributed's errors, gloo's plain ones too
        raise PeerLost(f"{who} lost another rank: {str(error).splitlines()[0]}") from error


def buckets(parameters: list[nn.Parameter], *, max_numel: int = BUCKET_NUMEL) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters in order, as many at a time as `max_numel` holds, and of one dtype; at least one."""
    bucket: list[nn.Parameter] = []
    numel = 0
    for parameter in parameters:
        if bucket and (numel + parameter.numel() > max_numel or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, numel = [], 0
        bucket.append(parameter)
        numel += parameter.numel()
    if bucket:
        yield bucket


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as one rank of several, by our launcher or by torchrun."""
    return "TORCHELASTIC_RUN_ID" in environ


def join(device_type: str, *, environ: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's place among the ranks; joins their group where there are several."""
    if not is_rank(environ):
        return Ranks()
    with _peers_named(f"rank {environ.get('RANK')}"):
        store, rank, size = next(rendezvous("env://", timeout=SUM_TIMEOUT))
        if size == 1:
            return Ranks()
        dist.init_process_group(
            # host values go through gloo, which hears of a dead rank at once
            "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=SUM_TIMEOUT,
        )
    return Ranks(rank, size, PrefixStore("turns", store), ranks_a_node=int(environ.get("LOCAL_WORLD_SIZE", size)))
