"""GPU facts for `opsctl doctor`: nvidia-smi's answer and its time, the driver's two halves, the device files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from opsctl.agent import gpus
from opsctl.agent.env.driver import kernel_driver
from opsctl.agent.home import Home
from opsctl.agent.leases import holders
from opsctl.agent.run_state import is_live
from opsctl.errors import CommandFailed, MissingTool, TimedOut
from opsctl.records.doctor import GpuFacts
from opsctl.records.events import GpuSample

_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/*")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_LIBRARY_VERSION = re.compile(r"libcuda\.so\.(?P<version>\d+\.\d+(\.\d+)?)$")


def gpu_facts(home: Home) -> GpuFacts:
    """All that is to be known of the GPUs here; a machine without any gives empty facts."""
    began = time.monotonic()
    found, problem = _ask()
    answer_s = None if found is None else time.monotonic() - began
    folders = (*_LIBRARY_FOLDERS, *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    return GpuFacts(
        gpus=found or (),
        problem=problem,
        answer_s=answer_s,
        holders={gpu.uuid: run for gpu in found or () for run in _held(home, gpu.uuid)},
        kernel_driver=kernel_driver(),
        library=library_version(str(path) for folder in folders for path in Path(folder).glob("libcuda.so.*")),
        nodes={str(path): _why_closed(path) for pattern in _NODES for path in sorted(Path("/dev").glob(pattern))},
    )


def _ask() -> tuple[tuple[GpuSample, ...] | None, str]:
    """The GPUs, None where nothing can be asked for them, and nvidia-smi's trouble."""
    try:
        return gpus.ask(), ""
    except MissingTool:
        return None, ""
    except (TimedOut, CommandFailed) as error:
        return (), error.message


def _held(home: Home, uuid: str) -> list[str]:
    held = holders(home, uuid, lambda run_id: is_live(home.run(run_id)))
    return [f"{run_id} of {owner.operator}" for run_id, owner in held]


def library_version(paths: Iterable[str]) -> str:
    """The version that libcuda's file name carries, "" where no file does.

    >>> library_version(["/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.580.65.06"])
    '580.65.06'
    """
    return next((match["version"] for path in paths if (match := _LIBRARY_VERSION.search(path))), "")


def _why_closed(path: Path) -> str:
    """Why a device file does not open: a container's device rules refuse what its folder shows."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return ""
