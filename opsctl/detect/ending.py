"""The verdict on a job that has ended: finished, stopped or crashed, and the root cause."""

from __future__ import annotations

from opsctl.detect.context import Opinion
from opsctl.detect.kernel import KernelEvent
from opsctl.detect.rules import DEFAULT_WEIGHT
from opsctl.detect.state import State
from opsctl.detect.words import NEAR_ROWS, Hit
from opsctl.records.events import End

CHECKPOINTED = 75
REFUSED = 2  # what parsers of command lines end with
HELD_MIB = 2048.0
LARGE_MIB = 16 * 1024.0
MEMORY_RISE = 1.3
SURE_WEIGHT = 40
JUST_BEFORE_S = 10.0  # the kernel's rows come by another way than the job's
COUNTED = "the control group counted an OOM kill"
_OF_KILLED = frozenset({"sigkill_unknown", "dataloader_worker_died"})  # what the kill of one process looks like
_SIGNALS = {
    1: ("crashed", "sighup"),
    2: ("stopped", "keyboard_interrupt"),
    7: ("crashed", "shm_bus_error"),
    9: ("crashed", "sigkill_unknown"),
    11: ("crashed", "segfault"),
    15: ("stopped", "sigterm"),
}
_NAMES = {1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_ENDS_QUIETLY = frozenset({6, 11})  # at interpreter exit, after the work


def weigh(state: State, end: End) -> Opinion:
    """The verdict on an end, from its status and what was seen before it."""
    return (
        _asked_for(state, end)
        or _left_behind(state, end)
        or _well_ended(state, end)
        or _killed_for_memory(state, end)
        or _stopped(state, end)
        or _crashed(state, end)
    )


def signal_of(end: End) -> int | None:
    """The signal that ended the job, also where a shell turned it into 128 + n."""
    if end.signal is not None:
        return end.signal
    if end.exit_code is not None and 128 < end.exit_code < 160:
        return end.exit_code - 128
    return -end.exit_code if end.exit_code is not None and -32 < end.exit_code < 0 else None


def _asked_for(state: State, end: End) -> Opinion | None:
    if end.exit_code == CHECKPOINTED:
        return Opinion("stopped", "ok", 0.98, _early(state, end))
    if not end.stop_requested:
        return None
    if end.exit_code == 0:
        hit = state.progress.is_done
        return Opinion("finished" if hit else "stopped", "ok", 0.95, ("asked to stop; ended with status 0",))
    return Opinion("stopped", "ok", 0.98, ("asked to stop",))


def _early(state: State, end: End) -> tuple[str, ...]:
    """What status 75 means here: a job may be asked to stop before there is anything to save."""
    progress, said = state.progress, state.words.last.get("checkpoint_saved")
    saved = end.checkpoint or (said.text if said else "")
    if saved or "checkpoint" in progress.longest or progress.phase == "checkpoint":
        return ("ended with status 75: stopped early with a good checkpoint", *((saved,) if saved else ()))
    return ("ended with status 75: stopped on request; no checkpoint of it was seen",)


def _left_behind(state: State, end: End) -> Opinion | None:
    """The job's process is gone, its launcher stays."""
    if state.context.launcher_alive is not True or end.exit_code is not None or not state.progress.is_done:
        return None
    return Opinion("hung", "exit_hang", 0.8, ("the work is done, the launcher is still there",))


def _well_ended(state: State, end: End) -> Opinion | None:
    if end.exit_code == 0:
        return _status_zero(state)
    signal = signal_of(end)
    done = state.progress.is_done
    if done and ((end.exit_code is None and signal is None) or signal in _ENDS_QUIETLY) and not _root(state, within=0):
        return Opinion("finished", "ok", 0.8, ("the log says that the work is done", *_status(end)))
    if (
        state.progress.is_at_end
        and end.exit_code is None
        and signal is None
        and not _root(state, within=0)
        and not _stop(state)
    ):
        return Opinion("finished", "ok", 0.7, (f"all {state.progress.num_steps} steps done",))
    return None


def _status_zero(state: State) -> Opinion | None:
    stop = _stop(state)
    if stop is not None and not state.progress.is_done:
        return Opinion("stopped", stop.cause, 0.8, (stop.text, "ended with status 0"), stop.advice)
    root = _root(state, within=0)
    hidden = root is not None and root.name == "exception" and not root.is_mention and not state.progress.is_done
    if hidden and root is not None and root.where and not root.thread and _is_midway(state):
        return None  # a pipe or wrapper swallowed the status: the log ends in an uncaught traceback
    return Opinion("finished", "ok", 0.95, ("ended with status 0",))


def _is_midway(state: State) -> bool:
    progress = state.progress
    return progress.num_steps is not None and (progress.step or 0) < progress.num_steps


def _killed_for_memory(state: State, end: End) -> Opinion | None:
    event = next((event for event in state.kernel.events if _may_have_killed(event, end)), None)
    hit, root = state.words.last.get("cgroup_oom"), _root(state)
    counted = [COUNTED] if end.oom_killed and (event is not None or not _others_killed(state)) else []
    told = [*([event.text] if event else []), *counted, *([hit.text] if hit else [])]
    was_killed = signal_of(end) == 9 or (root is not None and root.cause in _OF_KILLED)
    is_sure = hit is not None or (event is not None and event.is_own is True)
    if told and (is_sure or was_killed or (end.exit_code is None and signal_of(end) is None)):
        return Opinion("crashed", "host_oom_killed", 0.95, tuple(told))
    if signal_of(end) == 9 or (root is not None and root.cause == "sigkill_unknown"):
        return _memory_rose(state)
    return None


def _may_have_killed(event: KernelEvent, end: End) -> bool:
    """Whether a kernel event may be this job's end; where nobody knows whose it was, our control group counted one."""
    is_ours = event.is_own or (event.is_own is None and end.oom_killed is not False)
    return event.cause == "host_oom_killed" and is_ours


def _counted(state: State, end: End) -> Opinion | None:
    """A kill for memory that was only counted: jobs may share a control group, so any other explanation goes first."""
    if not end.oom_killed or _others_killed(state):
        return None
    text = f"{COUNTED} while the job ran, and nothing else explains its end"
    return Opinion("crashed", "host_oom_killed", 0.6, (*_status(end), text))


def _others_killed(state: State) -> bool:
    """Whether the kernel named another process that it killed for memory: then the count may be of that one."""
    return any(event.cause == "host_oom_killed" and event.is_own is False for event in state.kernel.events)


def _memory_rose(state: State) -> Opinion | None:
    """Killed after host memory rose, as /proc or the log itself shows."""
    processes, logged = state.processes, state.progress.host_memory
    seen = [(processes.first_rss_mib, processes.rss_mib)] if processes.rss_mib > LARGE_MIB else []
    for first, last in [*seen, *([(logged[0], logged[1])] if logged else [])]:
        if last > MEMORY_RISE * first > 0:
            text = f"killed, after the job's host memory rose from {first:.4g} to {last:.4g}"
            return Opinion("crashed", "host_oom_killed", 0.6, (text,))
    return None


def _stopped(state: State, end: End) -> Opinion | None:
    """Words about an end from outside, unless something graver came first."""
    stop, root = _stop(state), _root(state)
    signal = signal_of(end)
    if stop is None and signal in (2, 15):
        verdict, cause = _SIGNALS[signal]
        graver = root is not None and root.weight >= SURE_WEIGHT and not root.is_mention
        return None if graver else Opinion(verdict, cause, 0.9, _status(end))
    if stop is None or (root is not None and root.rank_weight > SURE_WEIGHT and root.start < stop.start):
        return None
    if stop.name == "step_cancelled" and any(hit.start < stop.start for hit in state.words.failures(stop.rows)):
        return None  # srun ends the whole step when one of its tasks fails
    verdict = "crashed" if stop.cause == "sighup" else "stopped"
    return Opinion(verdict, stop.cause, 0.9, (stop.text, *_status(end)), stop.advice)


def _crashed(state: State, end: End) -> Opinion:
    event = state.kernel.root(state.progress.num_rows, within=3, since=end.time - JUST_BEFORE_S)
    root = _root(state)
    if event is not None and event.cause != "host_oom_killed" and (root is None or event.weight >= root.rank_weight):
        told = (event.text, *((root.text,) if root else ()))
        return Opinion("crashed", event.cause, 0.93 if event.is_own else 0.75, told, event.advice)
    lost = _lost(state)
    if lost is not None and (root is None or root.rank_weight < DEFAULT_WEIGHT):
        return lost
    if root is not None and root.cause not in ("cause_unknown", "sigkill_unknown") and _outweighs(root, end):
        return Opinion(
            _verdict_of(root), root.cause, 0.9 if root.weight >= SURE_WEIGHT else 0.8, _told(root, end), root.advice
        )
    return _held(state) or _by_status(state, end, root)


def _outweighs(root: Hit, end: End) -> bool:
    """Words in passing explain a failing status, but no signal."""
    return root.is_firm or signal_of(end) not in _SIGNALS


def _verdict_of(root: Hit) -> str:
    return "stopped" if root.cause in ("sigterm", "keyboard_interrupt") else "crashed"


def _lost(state: State) -> Opinion | None:
    """What nvidia-smi says after the end about a GPU that is lost or a driver that does not fit."""
    lost, problem = state.gpus.lost(), state.gpus.problem
    if lost:
        return Opinion("crashed", "gpu_lost", 0.8, (lost,))
    return Opinion("crashed", "driver_mismatch", 0.8, (problem,)) if "version mismatch" in problem else None


def _held(state: State) -> Opinion | None:
    """Memory on a GPU that nobody uses any more."""
    held = state.gpus.held_mib()
    if held < HELD_MIB:
        return None
    text = f"the process is gone and a GPU still holds {held / 1024:.1f} GiB without work"
    return Opinion("crashed", "gpu_memory_not_released", 0.75, (text,))


def _by_status(state: State, end: End, root: Hit | None) -> Opinion:
    signal = signal_of(end)
    if signal in _SIGNALS:
        verdict, cause = _SIGNALS[signal]
        return Opinion(verdict, cause, 0.85, (*_status(end), *((root.text,) if root else ())))
    if root is not None:
        return Opinion("crashed", root.cause, 0.7, _told(root, end), root.advice)
    if end.exit_code == REFUSED and not state.progress.num_rows and _shows_usage(state):
        return Opinion("crashed", "bad_arguments", 0.75, (*_status(end), *state.last_rows[-3:]))
    if end.exit_code is None and not state.progress.num_rows:
        text = "the process is gone; there is no status, and the log shows neither a step nor a failure"
        return Opinion("unknown", "cause_unknown", 0.3, (text,))
    if end.is_tail_unseen and end.exit_code is None and signal is None:
        text = "the terminal closed with the job: neither its status nor what it printed last was seen"
        return Opinion("unknown", "cause_unknown", 0.4, (text, *state.last_rows[-1:]))
    counted = _counted(state, end)
    if counted is not None:
        return counted
    told = (*_status(end), *state.last_rows[-3:])
    return Opinion("crashed", "cause_unknown", 0.6, told)


def _shows_usage(state: State) -> bool:
    return any(row.lstrip(" \u2502").lower().startswith("usage:") for row in state.last_rows)


def _root(state: State, within: int = NEAR_ROWS) -> Hit | None:
    return state.words.root(state.progress.num_rows, within)


def _stop(state: State) -> Hit | None:
    return state.words.stop(state.progress.num_rows)


def _told(root: Hit, end: End) -> tuple[str, ...]:
    place = (f"raised at {root.where}",) if root.where else ()
    rank = (f"first seen on rank {root.rank}",) if root.rank is not None else ()
    return (root.text, *place, *rank, *_status(end))


def _status(end: End) -> tuple[str, ...]:
    signal = signal_of(end)
    if signal is not None:
        return (f"ended by signal {signal} ({_NAMES.get(signal, 'other')})",)
    return (f"ended with status {end.exit_code}",) if end.exit_code is not None else ()
