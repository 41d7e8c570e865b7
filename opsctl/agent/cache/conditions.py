"""Under which conditions a cache was warmed, as far as they are not in its key: recipe, sources, driver, threads.

They explain; they refuse nothing, since torch's own keys decide what is found.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opsctl.agent.env.driver import kernel_driver
from opsctl.agent.env.layout import find
from opsctl.agent.env.place import place
from opsctl.agent.home import Home
from opsctl.records.cache import Difference


def machine_conditions(place_of_env: str) -> dict[str, str]:
    """What the target adds: where jobs see their environment, the GPU driver, and the CPUs that we may use."""
    found = {"cpus": str(len(os.sched_getaffinity(0)))}
    if place_of_env:
        found["environment at"] = place_of_env  # torch has its headers' path in the keys of C++ code
    return found | ({"driver": driver} if (driver := kernel_driver()) else {})


def place_of_jobs(home: Home, *, env: str = "", uses_env: bool = True) -> str:
    """Where jobs see the environment of this id ("" = the active one), "" where they use none."""
    return str(place(find(home, Path(env).name).root)) if uses_env else ""


def with_threads(conditions: dict[str, str], report: dict[str, Any]) -> dict[str, str]:
    """The conditions, and the threads that the job says it used."""
    return {**conditions, "threads": str(report["threads"])} if "threads" in report else conditions


def compare(now: dict[str, str], then: dict[str, str]) -> tuple[Difference, ...]:
    """What differs between now and when a cache was warmed; what only its job could tell is left out; pure.

    >>> compare({"cpus": "8"}, {"cpus": "2", "threads": "1"})
    (Difference(name='cpus', a='8', b='2'),)
    """
    names = sorted((now.keys() | then.keys()) - {"threads"})
    rows = (Difference(name, now.get(name, ""), then.get(name, "")) for name in names)
    return tuple(row for row in rows if row.a != row.b)
