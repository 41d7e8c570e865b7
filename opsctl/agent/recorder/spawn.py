"""Starts the job: its environment (pure) and its process on a pseudo-terminal of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.processes import RUN_ID_VARIABLE
from opsctl.agent.signals import RECORDER_VARIABLE
from opsctl.records import RunSpec

RUN_DIR_VARIABLE = "OPSCTL_RUN_DIR"
COLUMNS, ROWS = 200, 50
OOM_SCORE_OF_JOB = 300
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# ours or the pane's, and no business of the job
_NOT_INHERITED = ("TMUX", "TMUX_PANE", RECORDER_VARIABLE, "OPSCTL_CONFIG", "OPSCTL_TARGET", "LINES", "COLUMNS")
_libc = ctypes.CDLL(None, use_errno=True)


def environment(
    spec: RunSpec, base: Mapping[str, str], *, run_id: str, folder: Path, secrets: Mapping[str, str]
) -> dict[str, str]:
    """What the job gets: the target's environment, then what opsctl sets, then the job's own and its secrets."""
    found = {name: value for name, value in base.items() if name not in _NOT_INHERITED}
    found |= dict.fromkeys(("PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"), "1")
    found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # so that 5 is nvidia-smi's 5
    if spec.env:
        found["VIRTUAL_ENV"] = spec.env
        found["PATH"] = os.pathsep.join((f"{spec.env}/bin", base.get("PATH", os.defpath)))
    if spec.code:
        found["PYTHONPATH"] = spec.code
    if spec.cache_dir:
        found["TORCHINDUCTOR_CACHE_DIR"] = f"{spec.cache_dir}/inductor"
        found["TRITON_CACHE_DIR"] = f"{spec.cache_dir}/triton"
    if spec.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
    return {**found, **spec.environment, **secrets, RUN_ID_VARIABLE: run_id, RUN_DIR_VARIABLE: str(folder)}


def become_subreaper() -> None:
    """Orphans of the job become children of this process instead of PID 1's."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """For a child between fork and exec: it is killed when its parent ends in whatever way."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True)
class Job:
    """The job's first process and our end of its terminal."""

    process: subprocess.Popen[bytes]
    terminal_fd: int


def _open_terminal() -> tuple[int, int]:
    """Both ends of a pseudo-terminal whose output passes through byte for byte."""
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    os.set_blocking(ours, False)
    return ours, theirs


def _in_child() -> None:
    """Between fork and exec, in a session of its own: take the terminal, undo what only the recorder wants."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - bare, after fork
            score = int(file.read())
            file.seek(0)
            file.write(str(max(score, OOM_SCORE_OF_JOB)))
    except OSError:
        return  # a hardened container keeps it read-only; then the kernel chooses by size alone


def start_job(argv: tuple[str, ...], environment: Mapping[str, str], folder: Path) -> Job:
    """Start `argv` in `folder`; raises OSError (no such program, not executable) as exec does."""
    ours, theirs = _open_terminal()
    try:
        process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=_in_child,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return Job(process, ours)
