"""What this target is: the facts that other steps and `opsctl doctor` decide on. Changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import time
from typing import Any

from opsctl.agent.processes import boot_id
from opsctl.agent.session import Call

TOOLS = ("tmux", "nvidia-smi", "g++", "clang++", "git", "py-spy")


def probe(call: Call) -> dict[str, Any]:
    """Facts about the target as a plain mapping; times in seconds, sizes in MiB."""
    call.home.ensure()
    disk = shutil.disk_usage(call.home.root)
    return {
        "home": str(call.home.root),
        "hostname": platform.node(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "boot_id": boot_id(),
        "time": time.time(),
        "num_cores": len(os.sched_getaffinity(0)),
        "disk_free_mib": disk.free / 2**20,
        "tools": {tool: shutil.which(tool) or "" for tool in TOOLS},
    }
