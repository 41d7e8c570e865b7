"""`cache-prewarm`: a job's own prewarm command in its own environment, into the live cache, measured."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.cache.conditions import machine_conditions, with_threads
from opsctl.agent.cache.live import LivePaths, ensure_live, key_for, listing, read_key, read_warmed, remember_warmed
from opsctl.agent.cache.snapshot import cache_lock
from opsctl.agent.env.place import place
from opsctl.agent.home import Home
from opsctl.agent.job_command import asked, read_report, run_command
from opsctl.agent.job_start import start_job
from opsctl.agent.locks import held
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.records.cache import Warmed


def prewarm(call: Call) -> Any:
    """Start the prewarm that request["spec"] describes, its argv the job's command; returns the RunRecord.

    The environment and the cache folder are filled in here, since only the target knows them.
    """
    spec, env = asked(call)
    live = ensure_live(call.home, key_for(call.home, env=env.env_id if env else "", uses_env=env is not None))
    place_of_env = str(place(env.root)) if env else ""
    conditions = {**call.request.get("conditions", {}), **machine_conditions(place_of_env)}
    words = ("job", "cache-prewarm", str(live.root), call.request["job"], call.operator)
    argv = (*agent_argv(), *words, "--", *spec.argv)
    located = replace(spec, argv=argv, env=str(env.root) if env else "", cache_dir=str(live.root))
    return start_job(call, located, has_placeholders=True, request=conditions)


def is_warm(report: dict[str, Any], num_new_files: int) -> bool | None:
    """Whether nothing had to be compiled: the job's own word, and no word against it from the disk; pure."""
    said = report.get("warm")
    return bool(said) and num_new_files == 0 if isinstance(said, bool) else None


def warm(
    live: LivePaths,
    job: str,
    argv: tuple[str, ...],
    progress: jobs.Phases,
    *,
    operator: str,
    conditions: dict[str, str],
) -> Warmed:
    """Run the prewarm and keep in the live cache what it left."""
    folder = Path.cwd()
    lock = cache_lock(Home.at(str(live.root.parents[2])), read_key(live))
    with held(lock, operator=operator, why=f"cache prewarm of {job}", wait_s=jobs.LOCK_WAIT_S) as left:
        if left:
            progress.phase("lock", left)
        before = listing(live.root)
        progress.phase("prewarm", " ".join(argv))
        _, seconds = run_command(argv, "prewarm")
        num_new = len(listing(live.root).keys() - before.keys())
        report = read_report(folder)
        found = is_warm(report, num_new)
        was_cold = num_new > 0 if found is None else not found
        known = read_warmed(live).get(job)
        warmed = Warmed(
            job=job,
            time=time.time(),
            seconds=seconds,
            cold_s=seconds if was_cold else (known.cold_s if known else None),
            num_new_files=num_new,
            is_warm=found,
            report=report,
            run_id=folder.name,
            cache_dir=str(live.root),
            conditions=with_threads(conditions, report),
        )
        remember_warmed(live, warmed)
    return warmed


def main(arguments: list[str]) -> int:
    """`AGENT job cache-prewarm LIVE JOB OPERATOR -- WORD...`; its request holds the conditions."""
    live, job, operator, _, *argv = arguments
    conditions: dict[str, str] = jobs.request(Path.cwd())

    def work(progress: jobs.Progress) -> Warmed:
        return warm(LivePaths(Path(live)), job, tuple(argv), progress, operator=operator, conditions=conditions)

    return jobs.run(work, folder=Path.cwd())
