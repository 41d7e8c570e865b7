"""The verdict on a job that has not ended: crashed in part, hung, eager, degraded, starting or healthy.

The first question that answers decides; where none does, the job is well.
"""

from __future__ import annotations

from collections.abc import Callable

from opsctl.detect import compiling, degraded, stuck
from opsctl.detect.context import Opinion
from opsctl.detect.silence import Silence
from opsctl.detect.state import State


def weigh(state: State) -> Opinion:
    """The verdict now, of a job that runs."""
    silence = state.progress.silence(state.now)
    for question in _QUESTIONS:
        opinion = question(state, silence)
        if opinion is not None:
            return opinion
    return _well(state, silence)


def _eager(state: State, silence: Silence) -> Opinion | None:
    return compiling.opinion(state.compiling, state.words, state.progress, state.gpus)


def _well(state: State, silence: Silence) -> Opinion:
    cause, told = _note(state)
    busy = (state.gpus.utilization_pct() or 0.0) > degraded.IDLE_MEAN_PCT
    if state.progress.is_blind or (state.progress.is_unseen and busy):
        return Opinion("healthy" if busy else "unknown", cause, 0.5, told)
    if not state.progress.has_stepped:
        if cause == "ok" and stuck.was_compiling(state, silence):
            cause = "compile_warmup"
        return Opinion("starting", cause, 0.7, (*told, "no step seen yet"))
    quiet = (silence.text,) if silence.is_stalled else ()
    return Opinion("healthy", cause, 0.6 if quiet else 0.9, (*told, *quiet))


def _note(state: State) -> tuple[str, tuple[str, ...]]:
    """What is worth saying beside a healthy verdict."""
    event = state.kernel.note()
    if event is not None:
        return "hardware_warning", (event.text,)
    asked = [f"GPU {gpu.index}: {gpu.maintenance}" for gpu in state.gpus.gpus.values() if gpu.maintenance]
    if asked:
        return "hardware_warning", tuple(asked)
    problem = state.gpus.problem
    if not problem or "no nvidia-smi" in problem or state.gpus.gpus:
        return "ok", ()
    return ("driver_mismatch" if "version mismatch" in problem else "telemetry_unavailable"), (problem,)


_QUESTIONS: tuple[Callable[[State, Silence], Opinion | None], ...] = (
    stuck.stopped_process,
    stuck.leaves_not,
    stuck.failed_part,
    stuck.waits,
    stuck.silent_too_long,
    _eager,
    degraded.learning,
    degraded.disk,
    degraded.memory_growth,
    degraded.heat,
    degraded.without_gpu,
    degraded.pace,
    degraded.restarted,
)
