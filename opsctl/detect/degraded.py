"""Questions about a job that steps on and is not well: learning nothing, running out of something, too slow.

Each answers with an opinion or None.
"""

from __future__ import annotations

from opsctl.detect import memory
from opsctl.detect.context import Opinion
from opsctl.detect.progress import TRAINING
from opsctl.detect.silence import Silence
from opsctl.detect.state import State

SLOW, SLOW_OWN, SLOW_SHARED, SLOW_ROWS = 1.8, 2.5, 1.3, 3
DATA_SHARE = 0.5
IDLE_MEAN_PCT = 20.0
FULL_DISK_PCT, FULL_DISK_MIB = 99.0, 256.0
RESTART_ROWS, DISK_ROWS = 50, 200
NEARLY_FULL = 0.95
UNSURE_SPAN_S = 240.0  # of a run seen from its start: caches of an allocator fill for minutes
UNUSED_MIB, TOY_MIB = 1024.0, 4096.0
_NO_GPU = frozenset({"no_devices", "driver_mismatch"})


def learning(state: State, silence: Silence) -> Opinion | None:
    """Nothing is learned: numbers that are none, or steps that are skipped."""
    steps = state.progress.steps_done
    batches = state.words.skipped("cuda_oom", steps)
    if batches:
        text = f"{batches} batches in a row ran out of GPU memory and were skipped"
        return Opinion("degraded", "oom_skip_loop", 0.9, (text,))
    overflows = state.words.underflowed(steps)
    if overflows:
        text = f"{overflows} steps in a row skipped for overflow, loss scale {state.words.scale}"
        return Opinion("degraded", "loss_scale_underflow", 0.9, (text,))
    broken = state.words.skipped("nan_loss", steps)
    if broken:
        text = f"{broken} steps in a row skipped for numbers that are not finite"
        return Opinion("degraded", "nan_loss", 0.85, (text,))
    return state.losses.opinion()


def disk(state: State, silence: Silence) -> Opinion | None:
    """The disk is full and the run goes on: what it saves is lost."""
    said = [
        hit
        for hit in state.words.last.values()
        if hit.cause == "disk_full" and hit.rows >= state.progress.num_rows - DISK_ROWS
    ]
    full = (state.context.disk_used_pct or 0.0) >= FULL_DISK_PCT
    full = full or (state.disk_free_mib is not None and state.disk_free_mib < FULL_DISK_MIB)
    if not said and not full:
        return None
    told = [hit.text for hit in said] + (["the disk is full"] if full else [])
    return Opinion("degraded", "disk_full", 0.8, tuple(told))


def memory_growth(state: State, silence: Silence) -> Opinion | None:
    """GPU memory that rises after warm-up and does not come back."""
    if not runs(state) or state.context.warmup_done is False or state.progress.phase not in TRAINING:
        return None
    is_warm = state.context.warmup_done is True or state.context.joined_midway
    for gpu in state.gpus.gpus.values():
        found = gpu.growth(memory.GROWTH_SPAN_S if is_warm else UNSURE_SPAN_S)
        if found:
            levels = f"from {found.from_mib / 1024:.1f} to {found.to_mib / 1024:.1f} GiB"
            text = f"GPU {gpu.index}: memory rose {levels} in {found.span_s:.0f} s"
            ahead = f"full in {found.full_in_s / 60:.0f} min at this pace" if found.full_in_s is not None else ""
            return Opinion("degraded", "memory_growth", 0.8, tuple(filter(None, (text, ahead))))
    return None


def without_gpu(state: State, silence: Silence) -> Opinion | None:
    """The job said that it sees no GPU, goes on without, and the GPUs have nothing to do."""
    said = [hit for hit in state.words.first.values() if hit.cause in _NO_GPU and not hit.rows]
    gpus = state.gpus.gpus.values()
    unused = bool(gpus) and len(state.gpus.idle(6)) == len(gpus)
    empty = all(gpu.used_mib < UNUSED_MIB for gpu in gpus)
    if not said or not unused or not empty or not state.progress.has_stepped:
        return None
    return Opinion("degraded", said[0].cause, 0.8, (said[0].text, "the GPUs are idle and empty"))


def heat(state: State, silence: Silence) -> Opinion | None:
    """GPUs that lower their clocks because they are hot."""
    told = tuple(filter(None, (gpu.heat() for gpu in state.gpus.gpus.values())))
    return Opinion("degraded", "thermal_throttle", 0.85, told) if told else None


def pace(state: State, silence: Silence) -> Opinion | None:
    """Waiting for data, another tenant, GPUs that wait, or just slow steps; only where steps come at all."""
    if not runs(state) or silence.is_over or state.progress.phase not in TRAINING or state.progress.is_at_speed():
        return None
    return _waiting_for_data(state) or _sharing(state) or _idle(state) or _slow(state)


def _told(state: State, at_least: float) -> tuple[str, ...]:
    """The pace in words, if a step takes so many times as long as it should, and that is no first impression."""
    times = state.progress.pace.times or state.progress.token_pace.times
    enough = len(times) >= SLOW_ROWS or not times
    text = state.progress.slow_text(at_least) if enough else ""
    return (text,) if text else ()


def _waiting_for_data(state: State) -> Opinion | None:
    share = state.progress.data_share()
    if share is None or share < DATA_SHARE:
        return None
    told = (f"{share:.0%} of step time is waiting for data", *_told(state, SLOW))
    return Opinion("degraded", "dataloader_bound", 0.85, told)


def _sharing(state: State) -> Opinion | None:
    foreign, slow = state.gpus.foreigners(), _told(state, SLOW_SHARED)
    if not foreign or not (slow or _is_nearly_full(state)):
        return None
    text = ", ".join(f"pid {row.pid} ({row.name})" for row in foreign)
    return Opinion("degraded", "foreign_process", 0.8, (f"also on the GPU: {text}", *slow))


def _is_nearly_full(state: State) -> bool:
    return any(gpu.total_mib and gpu.used_mib >= NEARLY_FULL * gpu.total_mib for gpu in state.gpus.gpus.values())


def _idle(state: State) -> Opinion | None:
    """GPUs that hold a real model and hardly work; a toy on a large GPU is no trouble."""
    mean = state.gpus.utilization_pct()
    held = max((gpu.used_mib for gpu in state.gpus.gpus.values()), default=0.0)
    if mean is None or mean > IDLE_MEAN_PCT or held < TOY_MIB:
        return None
    cause = "dataloader_bound" if "few_workers_hint" in state.words.last else "gpu_idle"
    return Opinion("degraded", cause, 0.7, (f"GPU utilisation is {mean:.0f} % on average", *_told(state, SLOW)))


def _slow(state: State) -> Opinion | None:
    told = _told(state, SLOW if state.progress.knows_pace else SLOW_OWN)
    hot = [gpu for gpu in state.gpus.gpus.values() if told and gpu.is_slowed_by_heat]
    if hot:  # one sample alone is no alarm, beside slow steps it is their reason
        text = f"GPU {hot[0].index}: lowers its clocks for heat"
        return Opinion("degraded", "thermal_throttle", 0.75, (text, *told))
    return Opinion("degraded", "throughput_drop", 0.75, told) if told else None


def restarted(state: State, silence: Silence) -> Opinion | None:
    """The launcher has restarted the workers, and that is not long ago."""
    hit = state.words.last.get("restart_group") or state.words.last.get("elastic_exit")
    rows = state.progress.num_rows
    if hit is None or rows - hit.rows > RESTART_ROWS or (hit.name == "elastic_exit" and hit.rows == rows):
        return None  # an exit alone is no restart, until steps follow
    verdict = "starting" if hit.rows == rows else "degraded"
    return Opinion(verdict, "elastic_restart", 0.7, (hit.text,), hit.advice)


def runs(state: State) -> bool:
    """Whether the job is past its start, as far as one can know."""
    return state.progress.has_stepped or (state.progress.is_unseen and bool(state.gpus.gpus))
