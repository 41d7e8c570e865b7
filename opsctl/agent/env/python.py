"""The Python that an environment is built with: found on the target, or brought there by an earlier build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import MissingTool

_FACTS = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "platform": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag + "-" + sysconfig.get_platform(),
}))
"""
_LIMIT_S = 60.0


@dataclass(frozen=True)
class Python:
    """An interpreter on the target."""

    version: str
    executable: str
    platform: str  # ABI and machine: what decides which wheels fit


def facts(executable: str) -> Python | None:
    """What this interpreter is, or None if it does not start."""
    if executable == sys.executable:
        return _own_facts()
    try:
        done = subprocess.run(
            (executable, "-I", "-S", "-c", _FACTS), capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        return Python(**json.loads(done.stdout))
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        return None


def _own_facts() -> Python:
    """The same of our own interpreter, without starting it again."""
    abi = sysconfig.get_config_var("SOABI") or f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    version = ".".join(map(str, sys.version_info[:3]))
    return Python(version, os.path.realpath(getattr(sys, "_base_executable", sys.executable)), abi)


def fits(version: str, wanted: str) -> bool:
    """Whether a version is the one wanted, to as many numbers as were named.

    >>> fits("3.11.7", "3.11"), fits("3.1.1", "3.11"), fits("3.12.1", "")
    (True, False, True)
    """
    asked = [part for part in wanted.split(".") if part]
    return version.split(".")[: len(asked)] == asked


def _candidates(wanted: str, brought: Path) -> tuple[str, ...]:
    minor = re.match(r"\d+\.\d+", wanted)
    names = (f"python{minor.group()}" if minor else "", "python3", "python")
    found = (path for name in names if name and (path := shutil.which(name)))
    ours = sorted(map(str, brought.glob("*/bin/python3")), reverse=True)
    return (sys.executable, *found, *ours)


def find_python(wanted: str, brought: Path) -> Python:
    """The interpreter that fits "3.11" or "3.11.7", on PATH or below `brought`; raises MissingTool naming them."""
    seen: list[str] = []
    for candidate in dict.fromkeys(_candidates(wanted, brought)):
        python = facts(candidate)
        if python is not None and fits(python.version, wanted):
            return python
        seen.append(f"{candidate} is {python.version if python else 'no working Python'}")
    raise MissingTool(
        f"the set wants Python {wanted}, and the target has none: {'; '.join(seen)}",
        hint=f"install python{wanted} there (Debian: apt-get install python{wanted} python{wanted}-dev),"
        " set env.python_mirror to have it brought, or change `python` in the set",
    )
