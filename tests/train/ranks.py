"""Ranks as real processes: forked, so that they need not import torch again, and joined through a real store."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

from torch.distributed import TCPStore

from trainer.ranks import Ranks, join


def run_as_ranks(num_ranks: int, work: Callable[[Ranks], None], *, within_s: float = 200.0) -> list[int | None]:
    """Run `work` in that many ranks, as the elastic agent would have them meet; return their exit statuses."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_one, args=(rank, num_ranks, store.port, work)) for rank in range(num_ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(within_s)
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def _one(rank: int, num_ranks: int, port: int, work: Callable[[Ranks], None]) -> None:
    place = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    elastic = {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update(place | elastic)
    ranks = join("cpu")
    work(ranks)
    ranks.close()
