"""Starts a command as several ranks, on one machine or more, around torch's elastic agent; gathers how they ended.

Each rank sees one GPU, as cuda:0, so that compile cache keys are equal on all of them. It restarts nothing: whoever
launched it decides that from the exit status, which all nodes share. The only module that knows the elastic agent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from trainer.endings import Ending, ending_of
from trainer.errors import ConfigError, TrainerError
from trainer.files import read_json
from trainer.nodes import LOOPBACK, Nodes
from trainer.signals import STOP_SIGNALS

# Longer than the checkpoint of a large drafter takes: rank 0 saves once it is asked to stop, or has lost a peer.
SHUTDOWN_TIMEOUT_S = 600
# How long the first launcher stays for the others to have read what it keeps for them.
_LAST_WORD_S = 30
# How long a node waits for all others to be there.
_MEET_TIMEOUT_S = 600
_STORE_ERRORS = (DistNetworkError, DistStoreError)


@dataclass(frozen=True)
class Launched:
    """How the ranks of a launch ended, those of all nodes, and the signal by which a launcher was asked to stop."""

    endings: tuple[Ending, ...]
    stopped_by: str | None


class PatientAgent(LocalElasticAgent):
    """The elastic agent, except that it gives ranks the same time to end whyever it ends them.

    Where a rank has failed, torch kills the others after 30 s, whatever shutdown timeout the agent was given.
    """

    def _start_workers(self, worker_group: Any) -> Any:
        started = super()._start_workers(worker_group)
        context: Any = self._pcontext
        close = context.close

        def close_patiently(death_sig: signal.Signals | None = None, timeout: int = 0) -> None:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # a second request must not tear what the first one waits for
            close(death_sig, self._shutdown_timeout)

        context.close = close_patiently
        return started

    def _assign_worker_ranks(self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> Any:
        workers = super()._assign_worker_ranks(store, group_rank, group_world_size, spec)
        found = workers[0].world_size
        if found != group_world_size * spec.local_world_size:
            raise ConfigError(
                f"{found} ranks on {group_world_size} nodes, {spec.local_world_size} of them here: "
                "give all nodes the same --nproc"
            )
        return workers

    @property
    def shared(self) -> Any:
        """What the launchers of all nodes read and write."""
        return self._store

    def leave(self) -> None:
        """End the rendezvous: else its thread stays, and may be the one that drops it and would wait for itself."""
        self.get_worker_group().spec.rdzv_handler.shutdown()

    def returncodes(self) -> dict[int, int | None]:
        """Return each rank's status, negative for a signal; None where it still runs or never ran."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {rank: handler.proc.poll() for rank, handler in handlers.items()}


def launch(
    words: Sequence[str],
    *,
    num_ranks: int,
    uses_gpus: bool,
    result_file: Callable[[int], Path],
    nodes: Nodes | None = None,
    shutdown_timeout_s: int = SHUTDOWN_TIMEOUT_S,
) -> Launched:
    """Run `python WORD...` as `num_ranks` ranks on each node, to their end.

    `result_file` names what rank r, counted over all nodes, writes as it ends.
    """
    nodes = nodes or Nodes()
    ranks = range(nodes.rank * num_ranks, (nodes.rank + 1) * num_ranks)
    for rank in ranks:
        result_file(rank).unlink(missing_ok=True)
    _set_environment(num_ranks, is_alone=nodes.size == 1, uses_gpus=uses_gpus)
    agent = _agent(words, num_ranks, nodes, uses_gpus=uses_gpus, shutdown_timeout_s=shutdown_timeout_s)
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT)}
    stopped_by, failed_at = None, dict[int, float]()
    try:
        failed_at = {rank: one.timestamp for rank, one in agent.run().failures.items()}
    except SignalException as stop:
        stopped_by = signal.Signals(stop.sigval).name
    except _STORE_ERRORS as error:
        raise TrainerError(f"the nodes did not meet at {nodes.endpoint}: {str(error).splitlines()[0]}") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        agent.leave()
    returncodes, now = agent.returncodes(), time.time()
    endings = [
        ending_of(rank, read_json(result_file(rank)), returncodes.get(local), now=failed_at.get(rank, now))
        for local, rank in enumerate(ranks)
    ]
    own = Launched(tuple(endings), stopped_by)
    return own if nodes.size == 1 else _of_all_nodes(own, nodes, agent.shared, within_s=shutdown_timeout_s)


def _of_all_nodes(own: Launched, nodes: Nodes, shared: Any, *, within_s: int) -> Launched:
    """Tell the other launchers how the ranks here ended, and hear the same of theirs; a silent node's are lost."""
    deadline = time.monotonic() + within_s
    with suppress(*_STORE_ERRORS):  # the first node, which holds the store, is gone: then all others are silent
        shared.set(_endings_key(nodes.rank), json.dumps(asdict(own)))
    told = [own if rank == nodes.rank else _hear(rank, shared, deadline) for rank in range(nodes.size)]
    _leave(nodes, shared, [rank for rank, one in enumerate(told) if one is not None])
    found = [one or _silent(rank, len(own.endings)) for rank, one in enumerate(told)]
    stopped_by = own.stopped_by or next((one.stopped_by for one in found if one.stopped_by), None)
    return Launched(tuple(ending for one in found for ending in one.endings), stopped_by)


def _endings_key(node: int) -> str:
    return f"endings of node {node}"


def _gone_key(node: int) -> str:
    return f"node {node} has gone"


def _hear(node: int, shared: Any, deadline: float) -> Launched | None:
    """Return how the ranks of a node ended, None where it says nothing in time."""
    try:
        shared.wait([_endings_key(node)], timedelta(seconds=max(0.1, deadline - time.monotonic())))
        told = json.loads(shared.get(_endings_key(node)))
    except _STORE_ERRORS:
        return None
    return Launched(tuple(Ending(**one) for one in told["endings"]), told["stopped_by"])


def _silent(node: int, num_ranks: int) -> Launched:
    """The ranks of a node that said nothing: they count as lost, after every failure that somebody saw."""
    cause, first = f"node {node} did not say how its ranks ended", node * num_ranks
    ranks = range(first, first + num_ranks)
    return Launched(tuple(Ending(rank, None, cause, time.time()) for rank in ranks), None)


def _leave(nodes: Nodes, shared: Any, heard: Sequence[int]) -> None:
    """Go, the first node last: what the launchers share ends with it."""
    with suppress(*_STORE_ERRORS):  # gone without a word, after all
        if nodes.rank:
            shared.set(_gone_key(nodes.rank), "")
        else:
            # one by one: torch waits for ever for no key at all
            for rank in heard:
                if rank:
                    shared.wait([_gone_key(rank)], timedelta(seconds=_LAST_WORD_S))


def _set_environment(num_ranks: int, *, is_alone: bool, uses_gpus: bool) -> None:
    """Set what ranks inherit: sums of ranks on one machine stay on it, and CPU ranks share its cores."""
    if is_alone:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not uses_gpus:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_a_rank(num_ranks)))


def threads_of_a_rank(num_ranks: int) -> int:
    """Return how many threads a rank on the CPU gets."""
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _agent(
    words: Sequence[str], num_ranks: int, nodes: Nodes, *, uses_gpus: bool, shutdown_timeout_s: int
) -> PatientAgent:
    """Return an agent that meets those of the other nodes, or nobody but itself on a free port of this machine."""
    is_alone = nodes.size == 1
    rendezvous = RendezvousParameters(
        backend="c10d" if is_alone else "static",
        endpoint=nodes.endpoint,
        run_id=uuid.uuid4().hex if is_alone else "trainer",
        min_nodes=nodes.size,
        max_nodes=nodes.size,
        local_addr=LOOPBACK if is_alone else None,
        is_host=True,
        rank=nodes.rank,
        timeout=_MEET_TIMEOUT_S,
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=num_ranks,
        entrypoint=sys.executable,
        args=tuple(words),
        rdzv_handler=get_rendezvous_handler(rendezvous),
        max_restarts=0,
        monitor_interval=0.1,
        local_addr=LOOPBACK if is_alone else None,
        virtual_local_rank=uses_gpus,
    )
    logs = DefaultLogsSpecs(log_dir=os.devnull)
    return PatientAgent(spec, logs, exit_barrier_timeout=1, shutdown_timeout=shutdown_timeout_s)
