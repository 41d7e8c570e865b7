"""One of a job's own commands, its prewarm or its preflight: what is asked of it, its run, and what it leaves."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.agent import jobs
from opsctl.agent.env.layout import find
from opsctl.agent.session import Call
from opsctl.errors import CommandFailed, MissingTool
from opsctl.records.call import from_json
from opsctl.records.run import RunSpec

if TYPE_CHECKING:
    from opsctl.agent.env.layout import EnvPaths


def asked(call: Call) -> tuple[RunSpec, EnvPaths | None]:
    """The spec that request["spec"] describes, and the environment that it runs in, None where it needs none."""
    call.home.ensure()
    spec = from_json(RunSpec, call.request["spec"])
    return spec, find(call.home, Path(spec.env).name) if call.request.get("uses_env", True) else None


def run_command(argv: tuple[str, ...], key: str, *, answers: Collection[int] = (0,)) -> tuple[int, float]:
    """Run the job's `key` command to its end; return its status, one of `answers`, and how long it took in seconds."""
    started = time.monotonic()
    try:
        status = subprocess.run(argv, check=False).returncode
    except FileNotFoundError:
        raise MissingTool(f"no program {argv[0]!r} on the target", hint=f"check the job's `{key}` command") from None
    if status not in answers:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise CommandFailed(f"the {key} {how}", hint="its output is in the run's log")
    return status, round(time.monotonic() - started, 2)


def read_report(folder: Path) -> dict[str, Any]:
    """What the command wrote as its result, {} if it wrote none."""
    try:
        found = json.loads((folder / jobs.RESULT).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
