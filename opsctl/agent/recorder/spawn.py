"""What the job gets as its environment (pure), and what the kernel is told about this process and its children."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from opsctl.agent.processes import RUN_ID_VARIABLE
from opsctl.agent.signals import RECORDER_VARIABLE
from opsctl.records.run import RunSpec

RUN_DIR_VARIABLE = "OPSCTL_RUN_DIR"
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
        place = spec.env_place or spec.env
        found["VIRTUAL_ENV"] = place
        found["PATH"] = os.pathsep.join((f"{place}/bin", base.get("PATH", os.defpath)))
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
