"""`preflight`: a job's own preflight command in its own environment, on its devices; its result is the answer.

The command leaves result.json with `safe` and `problems`, and ends with 0 where it is safe and 1 where it is not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.job_command import asked, read_report, run_command
from opsctl.agent.job_start import start_job
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.errors import CommandFailed
from opsctl.records.preflight import PreflightOutcome

_ANSWERS = (0, 1)


def preflight(call: Call) -> Any:
    """Start the preflight that request["spec"] describes, its argv the job's command; returns the RunRecord."""
    spec, env = asked(call)
    words = ("job", "preflight", call.request["job"], "--", *spec.argv)
    located = replace(spec, argv=(*agent_argv(), *words), env=str(env.root) if env else "")
    return start_job(call, located, has_placeholders=True)


def try_topology(job: str, argv: tuple[str, ...], folder: Path) -> PreflightOutcome:
    """Run the command to its end and return what it said; raises CommandFailed where it said nothing."""
    status, seconds = run_command(argv, "preflight", answers=_ANSWERS)
    report = read_report(folder)
    if not isinstance(report.get("safe"), bool):
        raise CommandFailed(
            f"the preflight ended with status {status} and left no result.json that says `safe`",
            hint="its output is in the run's log",
        )
    return PreflightOutcome(
        job=job,
        is_safe=report["safe"] and status == 0,
        problems=tuple(str(one) for one in report.get("problems", ())),
        seconds=seconds,
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
