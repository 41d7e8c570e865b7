"""Questions about a job that does not get on: a part that failed, a process that is stopped, silence and its reason.

Each answers with an opinion or None. Words alone never decide: they count when no step follows.
"""

from __future__ import annotations

from opsctl.detect.context import Opinion
from opsctl.detect.gpu import SPIN_SAMPLES
from opsctl.detect.progress import CHATTER_FACTOR, CHATTER_FLOOR_S
from opsctl.detect.silence import Silence
from opsctl.detect.state import State
from opsctl.detect.words import Hit

START_PATIENCE_S = 30.0
LEAVE_PATIENCE_S = 60.0
BUSY_CORES, BUSY_PATIENCE_S = 0.5, 600.0  # a last evaluation or upload, perhaps
FAILURE_WEIGHT = 20  # below it a wording is only an echo
WORK_POWER_SHARE = 0.6
_LOOK = (
    "See where each process stands: the stacks-N.txt in the run's folder, `py-spy dump --pid PID`, or `opsctl train "
    "attach`. Ranks that wait in a collective end with its name once the process group's timeout is over "
    "(init_process_group(timeout=...)); where nothing moves, `opsctl train stop` and start from the last checkpoint."
)


def failed_part(state: State, silence: Silence) -> Opinion | None:
    """A thread, rank or GPU failed, and no step followed when one was due."""
    root = state.kernel.root(state.progress.num_rows, within=0) if silence.is_stalled else None
    if root is not None and root.cause != "driver_hang" and (root.is_own or root.cause == "gpu_lost"):
        return Opinion("crashed", root.cause, 0.9, (root.text, silence.text), root.advice)
    lost = state.gpus.lost()
    if lost and silence.is_stalled:
        return Opinion("crashed", "gpu_lost", 0.9, (lost, silence.text))
    if state.words.skipped("cuda_oom", state.progress.steps_done):
        return None  # caught again and again: not the end, but a loop
    hit = state.words.root(state.progress.num_rows)
    if hit is None or hit.weight < FAILURE_WEIGHT or not _is_past(state, hit, silence):
        return None
    return Opinion("crashed", hit.cause, 0.85, (hit.text, silence.text), hit.advice)


def _is_past(state: State, hit: Hit, silence: Silence) -> bool:
    if not state.progress.has_stepped:
        quiet = state.now - max(state.progress.last_line, state.progress.last_activity)
        return quiet > START_PATIENCE_S and hit.is_firm and not hit.is_mention
    if hit.rows < state.progress.num_rows or hit.is_mention or not hit.is_firm:
        return silence.is_over
    return silence.is_stalled


def stopped_process(state: State, silence: Silence) -> Opinion | None:
    """Somebody stopped the job: SIGSTOP, Ctrl-Z, a debugger that stays."""
    if not state.processes.is_stopped(state.now):
        return None
    text = "the job is stopped by a signal (process state T)"
    return Opinion("hung", "cause_unknown", 0.97, (text,), "Continue it with `kill -CONT`, or end it.")


def leaves_not(state: State, silence: Silence) -> Opinion | None:
    """The work is done and saved, and a process stays."""
    progress, context = state.progress, state.context
    if not _is_done(state):
        return None
    quiet = state.now - max(progress.last_line, progress.last_step, progress.done_at)
    busy = (state.processes.busy_cores or 0.0) > BUSY_CORES
    if quiet < (BUSY_PATIENCE_S if busy else LEAVE_PATIENCE_S) and context.ranks_alive is not False:
        return None
    since_s = state.now - max(progress.done_at, progress.last_step)
    text = f"the work is done since {since_s:.0f} s and a process is still there"
    return Opinion("hung", "exit_hang", 0.85, (text,))


def _is_done(state: State) -> bool:
    progress = state.progress
    if not progress.has_stepped or (_works(state) and state.now - progress.last_line < CHATTER_FLOOR_S):
        return False
    return progress.is_done or (progress.is_at_end and progress.phase == "train" and _leave_is_due(state))


def _leave_is_due(state: State) -> bool:
    return state.now - state.progress.last_step > CHATTER_FLOOR_S


def waits(state: State, silence: Silence) -> Opinion | None:
    """Silence with evidence: a spin, a dead driver, a logger or peer that is waited for, a rank that left."""
    if not silence.is_stalled and not _spins_blindly(state):
        return None
    for reason in (_rank_left, _driver, _spin):
        opinion = reason(state, silence)
        if opinion is not None:
            return opinion
    return None


def _spins_blindly(state: State) -> bool:
    """No output is at hand, and all GPUs that were seen at work spin now."""
    spinning = state.gpus.spinning()
    worked = [gpu for gpu in spinning if gpu.has_worked()]
    return state.progress.is_blind and bool(worked) and len(worked) == len(state.gpus.gpus)


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
    return Opinion(verdict, cause, 0.8, (text, silence.text))


def _driver(state: State, silence: Silence) -> Opinion | None:
    event = state.kernel.root(state.progress.num_rows, within=0)
    if event is not None and event.cause == "driver_hang":
        return Opinion("hung", "driver_hang", 0.9, (event.text, silence.text), event.advice)
    problem = state.gpus.problem
    if (problem and "answer" in problem and state.gpus.num_polls and state.gpus.last_good is None) or _went_dead(state):
        return Opinion("hung", "driver_hang", 0.75, (problem, silence.text))
    return None


def _went_dead(state: State) -> bool:
    since = state.gpus.problem_since
    return since is not None and "answer" in state.gpus.problem and state.now - since > LEAVE_PATIENCE_S


def _spin(state: State, silence: Silence) -> Opinion | None:
    spinning = state.gpus.spinning() or (state.gpus.spinning(1) if silence.is_over else [])
    if not spinning:
        return None
    names = ", ".join(str(gpu.index) for gpu in spinning)
    told = [f"GPU {names}: full utilisation at {spinning[0].points[-1].power:.0f} W, memory unmoved", silence.text]
    waited = state.words.since_step("wait", state.progress.num_rows)
    if waited is not None:
        return Opinion("hung", waited.cause, 0.85, (waited.text, *told), waited.advice)
    others = [gpu for gpu in state.gpus.idle(1 if state.gpus.num_polls < 2 else SPIN_SAMPLES) if gpu not in spinning]
    cause = "rank_desync" if others else "nccl_hang"
    if others:
        told.append(f"GPU {', '.join(str(gpu.index) for gpu in others)}: idle")
    return Opinion("hung", cause, 0.85, tuple(told))


def silent_too_long(state: State, silence: Silence) -> Opinion | None:
    """Nothing of what this phase owes for longer than it may take, without more evidence than that."""
    if not silence.is_over or (_works(state) and silence.since_s < _patience_at_work(state)):
        return None
    if state.words.skipped("cuda_oom", state.progress.steps_done):
        return None
    waited = state.words.since_step("wait", state.progress.num_rows)
    if waited is not None:
        return Opinion("hung", waited.cause, 0.85, (waited.text, silence.text), waited.advice)
    cause = "compile_hang" if was_compiling(state, silence) else "cause_unknown"
    told = [silence.text]
    if state.processes.waiting_since is not None:
        told.append("a process waits uninterruptibly (state D): storage, network file system or driver")
    return Opinion("hung", cause, 0.7, tuple(told), _LOOK if cause == "cause_unknown" else "")


def was_compiling(state: State, silence: Silence) -> bool:
    """Whether the newest thing known is that code is being compiled."""
    if silence.phase == "compile":
        return True
    return silence.phase == "starting" and (
        state.context.compile_expected is True or "compile_begins" in state.words.last
    )


def _works(state: State) -> bool:
    """GPUs that draw the power of real work: the log is quiet, the job is not."""
    busy = [gpu for gpu in state.gpus.gpus.values() if not gpu.is_idle() and not gpu.is_spinning(1)]
    last_step = state.progress.last_step
    powered = [
        gpu
        for gpu in busy
        if gpu.points[-1].power is not None
        and gpu.points[-1].power > WORK_POWER_SHARE * gpu.peak_w
        and (gpu.board_w is not None or gpu.points[0].time <= last_step)  # else nobody knows what work draws
    ]
    return bool(powered) and len(powered) == len(state.gpus.gpus)


def _patience_at_work(state: State) -> float:
    return max(CHATTER_FLOOR_S, CHATTER_FACTOR * state.progress.due_s())
