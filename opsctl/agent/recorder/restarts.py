"""Whether a job that ended is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.records.run import Attempt, Restart
from opsctl.records.verdict import Verdict

MAX_WITHOUT_PROGRESS = 3
EXIT_STOPPED_EARLY = 75
# what the same job, started again on the same machine, may well not meet again; a lost GPU, a driver
# that does not match, a full disk, a missing module, bad arguments or NaN it would
CURABLE = frozenset(
    {
        "sigkill_unknown",
        "host_oom_killed",
        "cuda_oom",
        "segfault",
        "sighup",
        "sigterm",
        "cause_unknown",
        "python_exception",
        "dataloader_worker_died",
        "pin_memory_thread_died",
        "shm_bus_error",
        "nccl_init_error",
        "nccl_timeout",
        "nccl_hang",
        "rank_desync",
        "peer_lost",
        "illegal_memory_access",
        "cublas_error",
        "gpu_exception",
        "elastic_restart",
        "fx_trace_race",
        "compile_cache_error",
        "memory_growth",
    }
)


def num_without_progress(attempts: Sequence[Attempt]) -> int:
    """How many of the newest attempts in a row came no further than the one before each of them."""
    count = 0
    furthest = -1
    for attempt in attempts:
        step = -1 if attempt.last_step is None else attempt.last_step
        count = 0 if step > furthest else count + 1
        furthest = max(furthest, step)
    return count


def restarts(policy: Restart, attempts: Sequence[Attempt], verdict: Verdict) -> bool:
    """Whether the job whose newest attempt is the last of `attempts` is started again.

    >>> lost = Attempt(1, 0.0, 9.0, None, 9, last_step=5)
    >>> restarts(Restart(max=2), [lost], Verdict("crashed", "sigkill_unknown"))
    True
    >>> restarts(Restart(max=2), [lost], Verdict("crashed", "gpu_lost"))
    False
    """
    last = attempts[-1]
    if last.stop_requested or last.exit_code == 0 or len(attempts) > policy.max:
        return False
    if num_without_progress(attempts) >= MAX_WITHOUT_PROGRESS:
        return False
    return last.exit_code == EXIT_STOPPED_EARLY or verdict.cause in CURABLE
