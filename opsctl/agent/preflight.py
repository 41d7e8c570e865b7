"""`preflight`: a job's own preflight command in its own environment, on its devices; its result is the answer.

The command leaves result.json with `safe` and `problems`, and ends with 0 where it is safe and 1 where it is not.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.cache.live import read_json
from opsctl.agent.env.layout import find
from opsctl.agent.job_start import start_job
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.errors import CommandFailed, MissingTool
from opsctl.records.call import from_json
from opsctl.records.preflight import PreflightOutcome
from opsctl.records.run import RunSpec

_ANSWERS = (0, 1)


def preflight(call: Call) -> Any:
    """Start the preflight that request["spec"] describes, its argv the job's command; returns the RunRecord."""
    call.home.ensure()
    spec = from_json(RunSpec, call.request["spec"])
    uses_env = bool(call.request.get("uses_env", True))
    env = str(find(call.home, Path(spec.env).name).root) if uses_env else ""
    words = ("job", "preflight", call.request["job"], "--", *spec.argv)
    return start_job(call, replace(spec, argv=(*agent_argv(), *words), env=env), has_placeholders=True)


def try_topology(job: str, argv: tuple[str, ...], folder: Path) -> PreflightOutcome:
    """Run the command to its end and return what it said; raises CommandFailed where it said nothing."""
    started = time.monotonic()
    try:
        status = subprocess.run(argv, check=False).returncode
    except FileNotFoundError:
        raise MissingTool(f"no program {argv[0]!r} on the target", hint="check the job's `preflight` command") from None
    report = read_json(folder / jobs.RESULT)
    if status not in _ANSWERS or not isinstance(report.get("safe"), bool):
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        what = "" if status not in _ANSWERS else " and left no result.json that says `safe`"
        raise CommandFailed(f"the preflight {how}{what}", hint="its output is in the run's log")
    return PreflightOutcome(
        job=job,
        is_safe=report["safe"] and status == 0,
        problems=tuple(str(one) for one in report.get("problems", ())),
        seconds=round(time.monotonic() - started, 2),
        report=report,
        run_id=folder.name,
    )


def main(arguments: list[str]) -> int:
    """`AGENT job preflight JOB -- WORD...`."""
    job, _, *argv = arguments

    def work(progress: jobs.Progress) -> PreflightOutcome:
        progress.phase("preflight", " ".join(argv))
        return try_topology(job, tuple(argv), Path.cwd())

    return jobs.run(work, folder=Path.cwd())
