"""The verdict on a job that has not ended: crashed in part, hung, eager, degraded, starting or healthy.

Each question is a small function that answers with an opinion or None; the first that answers decides.
"""

from __future__ import annotations

from collections.abc import Callable

from opsctl.detect import compiling
from opsctl.detect.context import Opinion
from opsctl.detect.progress import CHATTER_FACTOR, CHATTER_FLOOR_S, Silence
from opsctl.detect.rules import advice
from opsctl.detect.state import State
from opsctl.detect.words import Hit

START_PATIENCE_S = 30.0
LEAVE_PATIENCE_S = 60.0
SLOW = 1.8
SLOW_ROWS = 3
DATA_SHARE = 0.5
IDLE_MEAN_PCT = 20.0
FULL_DISK_PCT, FULL_DISK_MIB = 99.0, 256.0
RESTART_ROWS = 50
DISK_ROWS = 200
NEARLY_FULL = 0.95


def weigh(state: State) -> Opinion:
    """The verdict now, of a job that runs."""
    silence = state.progress.silence(state.now)
    for question in _QUESTIONS:
        opinion = question(state, silence)
        if opinion is not None:
            return opinion
    return _well(state, silence)


# --- crashed, though something still runs ------------------------------------------------------------


def _failed_part(state: State, silence: Silence) -> Opinion | None:
    """A thread, rank or GPU failed, and no step followed when one was due."""
    root = state.kernel.root(state.progress.num_rows, within=0) if silence.is_stalled else None
    if root is not None and root.cause != "driver_hang" and (root.is_own or root.cause == "gpu_lost"):
        return Opinion("crashed", root.cause, 0.9, (root.text, _silent(silence)), root.advice)
    lost = state.gpus.lost()
    if lost and silence.is_stalled:
        return Opinion("crashed", "gpu_lost", 0.9, (lost, _silent(silence)), advice("gpu_lost"))
    if state.words.skipped_for_memory(state.progress.steps_done):
        return None  # caught again and again: not the end, but a loop
    hit = state.words.root(state.progress.num_rows)
    if hit is None or hit.weight < 20 or not _is_past(state, hit, silence):
        return None
    return Opinion("crashed", hit.cause, 0.85, (hit.text, _silent(silence)), hit.advice)


def _is_past(state: State, hit: Hit, silence: Silence) -> bool:
    if not state.progress.has_stepped:
        quiet = state.now - max(state.progress.last_line, state.progress.last_activity)
        return quiet > START_PATIENCE_S and not hit.is_mention
    if hit.rows < state.progress.num_rows or hit.is_mention:
        return silence.is_over
    return silence.is_stalled


# --- hung --------------------------------------------------------------------------------------------


def _stopped_process(state: State, silence: Silence) -> Opinion | None:
    if not state.processes.is_stopped(state.now):
        return None
    text = "the job is stopped by a signal (process state T)"
    return Opinion("hung", "cause_unknown", 0.97, (text,), "Continue it with `kill -CONT`, or end it.")


def _leaves_not(state: State, silence: Silence) -> Opinion | None:
    """The work is done and saved, and a process stays."""
    progress, context = state.progress, state.context
    if not _is_done(state):
        return None
    quiet = state.now - max(progress.last_line, progress.last_step, progress.done_at)
    if quiet < LEAVE_PATIENCE_S and context.ranks_alive is not False:
        return None
    text = f"the work is done since {state.now - max(progress.done_at, progress.last_step):.0f} s and a process is still there"
    return Opinion("hung", "exit_hang", 0.85, (text,), advice("exit_hang"))


def _is_done(state: State) -> bool:
    progress = state.progress
    at_end = progress.num_steps is not None and progress.num_steps > 1 and (progress.step or 0) >= progress.num_steps
    return progress.is_done or (at_end and progress.phase == "train" and _leave_is_due(state))


def _leave_is_due(state: State) -> bool:
    return state.now - state.progress.last_step > CHATTER_FLOOR_S


def _waits(state: State, silence: Silence) -> Opinion | None:
    """Silence with evidence: a spin, a dead driver, a logger or peer that is waited for, a rank that left."""
    if not silence.is_stalled:
        return None
    for reason in (_rank_left, _driver, _spin):
        opinion = reason(state, silence)
        if opinion is not None:
            return opinion
    return None


def _rank_left(state: State, silence: Silence) -> Opinion | None:
    if state.context.rank0_alive is not False and state.context.ranks_alive is not False:
        return None
    text = (
        "rank 0 is gone and the others wait"
        if state.context.rank0_alive is False
        else "the ranks are gone, the launcher waits"
    )
    cause = "rank_desync" if state.context.rank0_alive is False else "cause_unknown"
    verdict = "hung" if cause == "rank_desync" else "crashed"
    return Opinion(verdict, cause, 0.8, (text, _silent(silence)), advice(cause))


def _driver(state: State, silence: Silence) -> Opinion | None:
    event = state.kernel.root(state.progress.num_rows, within=0)
    if event is not None and event.cause == "driver_hang":
        return Opinion("hung", "driver_hang", 0.9, (event.text, _silent(silence)), event.advice)
    problem = state.gpus.problem
    if (problem and "answer" in problem and state.gpus.num_polls and state.gpus.last_good is None) or _went_dead(state):
        return Opinion("hung", "driver_hang", 0.75, (problem, _silent(silence)), advice("driver_hang"))
    return None


def _went_dead(state: State) -> bool:
    since = state.gpus.problem_since
    return since is not None and "answer" in state.gpus.problem and state.now - since > LEAVE_PATIENCE_S


def _spin(state: State, silence: Silence) -> Opinion | None:
    spinning = state.gpus.spinning()
    if not spinning:
        return None
    names = ", ".join(str(gpu.index) for gpu in spinning)
    told = (f"GPU {names}: full utilisation at {spinning[0].points[-1].power:.0f} W, memory unmoved", _silent(silence))
    waited = state.words.since_step("wait", state.progress.num_rows)
    if waited is not None:
        return Opinion("hung", waited.cause, 0.85, (waited.text, *told), waited.advice)
    others = [gpu for gpu in state.gpus.idle() if gpu not in spinning]
    cause = "rank_desync" if others else "nccl_hang"
    if others:
        told = (*told, f"GPU {', '.join(str(gpu.index) for gpu in others)}: idle")
    return Opinion("hung", cause, 0.85, told, advice(cause))


def _silent_too_long(state: State, silence: Silence) -> Opinion | None:
    if not silence.is_over or (_works(state, silence) and silence.since_s < _patience_at_work(state)):
        return None
    if state.words.skipped_for_memory(state.progress.steps_done):
        return None
    waited = state.words.since_step("wait", state.progress.num_rows)
    if waited is not None:
        return Opinion("hung", waited.cause, 0.85, (waited.text, _silent(silence)), waited.advice)
    cause = "compile_hang" if _was_compiling(state, silence) else "cause_unknown"
    told = [_silent(silence)]
    if state.processes.waiting_since is not None:
        told.append("a process waits uninterruptibly (state D): storage, network file system or driver")
    return Opinion("hung", cause, 0.7, tuple(told), advice(cause) or "Take stacks of the processes (py-spy dump).")


def _was_compiling(state: State, silence: Silence) -> bool:
    if silence.phase == "compile":
        return True
    return silence.phase == "starting" and (
        state.context.compile_expected is True or "compile_begins" in state.words.last
    )


def _works(state: State, silence: Silence) -> bool:
    """GPUs that draw the power of real work: the log is quiet, the job is not."""
    busy = [gpu for gpu in state.gpus.gpus.values() if not gpu.is_idle() and not gpu.is_spinning()]
    powered = [
        gpu
        for gpu in busy
        if gpu.points[-1].power is not None and gpu.peak_w and gpu.points[-1].power > 0.6 * gpu.peak_w
    ]
    return bool(powered) and len(powered) == len(state.gpus.gpus)


def _patience_at_work(state: State) -> float:
    return max(CHATTER_FLOOR_S, CHATTER_FACTOR * state.progress.due_s())


# --- eager and degraded --------------------------------------------------------------------------------


def _eager(state: State, silence: Silence) -> Opinion | None:
    return compiling.opinion(state.compiling, state.words, state.progress, state.gpus)


def _learning(state: State, silence: Silence) -> Opinion | None:
    """Nothing is learned: numbers that are none, or steps that are skipped."""
    batches = state.words.skipped_for_memory(state.progress.steps_done)
    if batches:
        text = f"{batches} batches in a row ran out of GPU memory and were skipped"
        return Opinion("degraded", "oom_skip_loop", 0.9, (text,), advice("oom_skip_loop"))
    overflows = state.words.skipped_for_overflow(state.progress.steps_done)
    if overflows:
        text = f"{overflows} steps in a row skipped for overflow, loss scale {state.words.scale}"
        return Opinion("degraded", "loss_scale_underflow", 0.9, (text,), advice("loss_scale_underflow"))
    return state.losses.opinion()


def _disk(state: State, silence: Silence) -> Opinion | None:
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
    return Opinion("degraded", "disk_full", 0.8, tuple(told), advice("disk_full"))


def _memory_growth(state: State, silence: Silence) -> Opinion | None:
    if (
        not state.progress.has_stepped
        or state.context.warmup_done is False
        or state.progress.phase not in ("", "train")
    ):
        return None
    for gpu in state.gpus.gpus.values():
        found = gpu.growth()
        if found:
            text = f"GPU {gpu.index}: memory rose from {found.from_mib / 1024:.1f} to {found.to_mib / 1024:.1f} GiB in {found.span_s:.0f} s"
            ahead = f"full in {found.full_in_s / 60:.0f} min at this pace" if found.full_in_s is not None else ""
            return Opinion(
                "degraded", "memory_growth", 0.8, tuple(filter(None, (text, ahead))), advice("memory_growth")
            )
    return None


def _heat(state: State, silence: Silence) -> Opinion | None:
    told = tuple(filter(None, (gpu.heat() for gpu in state.gpus.gpus.values())))
    return Opinion("degraded", "thermal_throttle", 0.85, told, advice("thermal_throttle")) if told else None


def _pace(state: State, silence: Silence) -> Opinion | None:
    """Slow steps, waiting for data, or GPUs that wait; only where steps come at all."""
    progress = state.progress
    if not progress.has_stepped or silence.is_over or progress.phase not in ("", "train"):
        return None
    ratio = progress.slowdown()
    slow = ratio is not None and ratio >= SLOW and (len(progress.step_times) >= SLOW_ROWS or not progress.step_times)
    told = (
        (f"a step takes {progress.step_s:.3g} s, {ratio:.1f} times what it should",) if slow and progress.step_s else ()
    )
    share = progress.data_share()
    if share is not None and share >= DATA_SHARE:
        return Opinion(
            "degraded",
            "dataloader_bound",
            0.85,
            (f"{share:.0%} of step time is waiting for data", *told),
            advice("dataloader_bound"),
        )
    foreign = state.gpus.foreigners()
    if foreign and (slow or _nearly_full(state)):
        text = ", ".join(f"pid {row.pid} ({row.name})" for row in foreign)
        return Opinion(
            "degraded", "foreign_process", 0.8, (f"also on the GPU: {text}", *told), advice("foreign_process")
        )
    return _idle(state, ratio, told) or (
        Opinion("degraded", "throughput_drop", 0.75, told, advice("throughput_drop")) if slow else None
    )


def _nearly_full(state: State) -> bool:
    return any(
        gpu.total_mib and gpu.points and (gpu.points[-1].used or 0.0) >= NEARLY_FULL * gpu.total_mib
        for gpu in state.gpus.gpus.values()
    )


def _idle(state: State, ratio: float | None, told: tuple[str, ...]) -> Opinion | None:
    mean = state.gpus.utilization_pct()
    if mean is None or mean > IDLE_MEAN_PCT or (state.progress.is_at_speed() and ratio is not None):
        return None
    cause = "dataloader_bound" if state.words.of_role("hint") and "few_workers_hint" in state.words.last else "gpu_idle"
    return Opinion("degraded", cause, 0.7, (f"GPU utilisation is {mean:.0f} % on average", *told), advice(cause))


def _restarted(state: State, silence: Silence) -> Opinion | None:
    hit = state.words.last.get("restart_group")
    if hit is None or state.progress.num_rows - hit.rows > RESTART_ROWS:
        return None
    verdict = "starting" if hit.rows == state.progress.num_rows else "degraded"
    return Opinion(verdict, "elastic_restart", 0.7, (hit.text,), hit.advice)


# --- nothing wrong ---------------------------------------------------------------------------------------


def _well(state: State, silence: Silence) -> Opinion:
    if (
        not state.num_rows_seen
        and not state.gpus.num_polls
        and state.processes.time is None
        and not state.progress.has_stepped
    ):
        return Opinion("starting", "ok", 0.5)
    if not state.progress.has_stepped and not state.num_rows_seen and state.context.joined_midway:
        return Opinion("unknown", _note(state)[0], 0.4, _note(state)[1])
    cause, told = _note(state)
    if not state.progress.has_stepped:
        if cause == "ok" and _was_compiling(state, silence):
            cause = "compile_warmup"
        return Opinion("starting", cause, 0.7, told)
    quiet = (_silent(silence),) if silence.is_stalled else ()
    return Opinion("healthy", cause, 0.6 if quiet else 0.9, (*told, *quiet), advice(cause) if cause != "ok" else "")


def _note(state: State) -> tuple[str, tuple[str, ...]]:
    """What is worth saying beside a healthy verdict."""
    event = state.kernel.note()
    if event is not None:
        return "hardware_warning", (event.text,)
    problem = state.gpus.problem
    if not problem or "no nvidia-smi" in problem or state.gpus.gpus:
        return "ok", ()
    return ("driver_mismatch" if "version mismatch" in problem else "telemetry_unavailable"), (problem,)


def _silent(silence: Silence) -> str:
    what = "no step" if silence.phase == "train" else f"nothing ({silence.phase})"
    return f"{what} for {silence.since_s:.0f} s; after {silence.stall_s:.0f} s that is odd, after {silence.hang_s:.0f} s too long"


_QUESTIONS: tuple[Callable[[State, Silence], Opinion | None], ...] = (
    _stopped_process,
    _leaves_not,
    _failed_part,
    _waits,
    _silent_too_long,
    _eager,
    _learning,
    _disk,
    _memory_growth,
    _heat,
    _pace,
    _restarted,
)
