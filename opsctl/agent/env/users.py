"""Who lives in an environment now: runs by their records, other processes by /proc. Reads only."""

from __future__ import annotations

from pathlib import Path, PurePath

from opsctl.agent.env.layout import unfinished
from opsctl.agent.home import Home
from opsctl.agent.processes import RUN_ID_VARIABLE, environ, pids, words
from opsctl.agent.run_state import all_runs, is_live

_VIRTUAL_ENV = b"VIRTUAL_ENV="
_RUN_ID = f"{RUN_ID_VARIABLE}=".encode()


def users(home: Home) -> dict[str, list[str]]:
    """Resolved environment folder -> ids of its live runs, and "process PID (PROGRAM)" for what else uses it."""
    found: dict[str, list[str]] = {}
    for run in all_runs(home):
        if run.spec.env and is_live(home.run(run.run_id)):
            found.setdefault(run.spec.env, []).append(run.run_id)
    live = {run_id for ids in found.values() for run_id in ids}
    for pid in pids():
        argv = words(pid)
        root = env_of(argv, environ(pid), f"{home.envs}/", live)
        if root:  # jobs see a build by a link that all builds of its set share
            name = PurePath(argv[0].decode(errors="replace")).name or "?"
            found.setdefault(str(Path(root).resolve()), []).append(f"process {pid} ({name})")
    return found


def abandoned(home: Home) -> list[Path]:
    """What builds and removals that were ended left, and nobody lives in; for the holder of their lock."""
    found = list(unfinished(home))
    used = {Path(root).name for root in users(home)} if found else set()
    return [root for root in found if root.name not in used]


def env_of(argv: tuple[bytes, ...], environment: tuple[bytes, ...], envs: str, live_runs: set[str]) -> str:
    """The environment below the folder `envs` that a process runs in; "" for none, or if a live run accounts for it.

    >>> env_of((b"/h/envs/ab-1/bin/python",), (), "/h/envs/", set())
    '/h/envs/ab-1'
    """
    run_id = next((entry.removeprefix(_RUN_ID) for entry in environment if entry.startswith(_RUN_ID)), b"")
    if not argv or run_id.decode(errors="replace") in live_runs:
        return ""
    named = [entry.removeprefix(_VIRTUAL_ENV) for entry in environment if entry.startswith(_VIRTUAL_ENV)]
    for place in (argv[0], *named):
        text = place.decode(errors="replace")
        if text.startswith(envs):
            return envs + text.removeprefix(envs).partition("/")[0]
    return ""
