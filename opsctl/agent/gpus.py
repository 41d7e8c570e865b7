"""The GPUs that nvidia-smi shows at this moment; asks once, within a limit."""

from __future__ import annotations

import shutil
import subprocess

from opsctl.detect.smi import parse_csv
from opsctl.errors import CommandFailed, MissingTool, TimedOut, UsageError
from opsctl.records.events import GpuSample

LIMIT_S = 30.0
_COLUMNS = ("index", "uuid", "name", "memory.used", "memory.total")


def ask() -> tuple[GpuSample, ...]:
    """All GPUs of this target; raises MissingTool, TimedOut or CommandFailed with nvidia-smi's own sentence."""
    if shutil.which("nvidia-smi") is None:
        raise MissingTool(
            "GPUs were asked for, but nvidia-smi is not on the target's PATH",
            hint="install the driver's utilities there, or run without --gpus",
        )
    argv = ("nvidia-smi", f"--query-gpu={','.join(_COLUMNS)}", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimedOut(
            f"nvidia-smi did not answer within {LIMIT_S:g} s", hint="the driver may hang: see dmesg"
        ) from None
    found, problem = parse_csv(done.stdout, _COLUMNS)
    if not found:
        said = problem or done.stderr.strip() or f"nothing, status {done.returncode}"
        raise CommandFailed(f"nvidia-smi names no GPU: {said}")
    return found


def choose(found: tuple[GpuSample, ...], wanted: tuple[int, ...]) -> tuple[GpuSample, ...]:
    """The GPUs of these indices, in this order; raises UsageError for one that is not there.

    >>> choose((GpuSample(5), GpuSample(6)), (6,))[0].index
    6
    """
    by_index = {gpu.index: gpu for gpu in found}
    missing = [index for index in wanted if index not in by_index]
    if missing:
        known = ", ".join(map(str, sorted(by_index)))
        raise UsageError(f"no GPU {missing[0]} on the target", hint=f"nvidia-smi shows: {known}")
    return tuple(by_index[index] for index in wanted)
