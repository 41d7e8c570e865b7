"""Starts a command as several ranks on this machine, around torch's elastic agent, and gathers how they ended.

Each rank sees one GPU, as cuda:0, so that compile cache keys are equal on all of them. It restarts nothing: whoever
launched it decides that from the exit status. The only module that knows the elastic agent.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from trainer.endings import Ending, ending_of
from trainer.files import read_json
from trainer.signals import STOP_SIGNALS

# Longer than the checkpoint of a large drafter takes: rank 0 saves once it is asked to stop, or has lost a peer.
SHUTDOWN_TIMEOUT_S = 600
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Launched:
    """How the ranks of a launch ended, and whether the launcher itself was asked to stop."""

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
    shutdown_timeout_s: int = SHUTDOWN_TIMEOUT_S,
) -> Launched:
    """Run `python WORD...` as `num_ranks` ranks to their end; `result_file` names what rank r writes as it ends."""
    for rank in range(num_ranks):
        result_file(rank).unlink(missing_ok=True)
    _set_environment(num_ranks, uses_gpus=uses_gpus)
    agent = _agent(words, num_ranks, uses_gpus=uses_gpus, shutdown_timeout_s=shutdown_timeout_s)
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT)}
    stopped_by, failed_at = None, dict[int, float]()
    try:
        failed_at = {rank: one.timestamp for rank, one in agent.run().failures.items()}
    except SignalException as stop:
        stopped_by = signal.Signals(stop.sigval).name
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    returncodes, now = agent.returncodes(), time.time()
    endings = [
        ending_of(rank, read_json(result_file(rank)), returncodes.get(rank), now=failed_at.get(rank, now))
        for rank in range(num_ranks)
    ]
    return Launched(tuple(endings), stopped_by)


def _set_environment(num_ranks: int, *, uses_gpus: bool) -> None:
    """Set what ranks inherit: their sums stay on this machine, and CPU ranks share its cores."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not uses_gpus:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads_of_a_rank(num_ranks)))


def threads_of_a_rank(num_ranks: int) -> int:
    """Return how many threads a rank on the CPU gets."""
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def _agent(words: Sequence[str], num_ranks: int, *, uses_gpus: bool, shutdown_timeout_s: int) -> PatientAgent:
    """Return an agent that meets nobody but itself, on a free port of this machine."""
    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint=f"{_LOOPBACK}:0",
        run_id=uuid.uuid4().hex,
        min_nodes=1,
        max_nodes=1,
        local_addr=_LOOPBACK,
        is_host=True,
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=num_ranks,
        entrypoint=sys.executable,
        args=tuple(words),
        rdzv_handler=get_rendezvous_handler(rendezvous),
        max_restarts=0,
        monitor_interval=0.1,
        local_addr=_LOOPBACK,
        virtual_local_rank=uses_gpus,
    )
    logs = DefaultLogsSpecs(log_dir=os.devnull)
    return PatientAgent(spec, logs, exit_barrier_timeout=10, shutdown_timeout=shutdown_timeout_s)
