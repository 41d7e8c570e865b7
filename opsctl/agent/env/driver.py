"""The NVIDIA driver of the target, as nvidia-smi and the kernel tell it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from opsctl.errors import CommandFailed, TimedOut

_LIMIT_S = 30.0
_KERNEL = Path("/proc/driver/nvidia/version")
_KERNEL_VERSION = re.compile(r"Kernel Module\b.*?\s(?P<version>\d+\.\d+(\.\d+)?)\s")
_VERSION = re.compile(r"^\d+(\.\d+)+$")
_WITHOUT = "name the set instead (`opsctl env rebuild NAME`), or mend the driver: see `nvidia-smi` and dmesg"


def version() -> str:
    """The driver's version, "" where no nvidia-smi is; raises CommandFailed or TimedOut if it does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    argv = (program, "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"nvidia-smi did not name the driver within {_LIMIT_S:g} s", hint=_WITHOUT) from None
    rows = [row.strip() for row in done.stdout.splitlines() if row.strip()]
    if done.returncode == 0 and rows and _VERSION.match(rows[0]):
        return rows[0]
    said = " ".join(rows) or done.stderr.strip() or "nothing"
    raise CommandFailed(f"nvidia-smi does not name the driver (status {done.returncode}): {said[:300]}", hint=_WITHOUT)


def kernel_driver() -> str:
    """The version of the module that the kernel runs, "" where it runs none; starts nothing."""
    return kernel_version(_KERNEL.read_text()) if _KERNEL.exists() else ""


def kernel_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version, "" where there is none.

    >>> kernel_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\\n")
    '580.65.06'
    """
    match = _KERNEL_VERSION.search(text)
    return match["version"] if match else ""
