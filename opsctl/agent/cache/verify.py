"""`cache-verify`: a job's prewarm in a copy of the live cache, which must find everything there.

The live cache is only read: a check that fills what it checks proves nothing the second time.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.cache.live import LivePaths, key_for, listing, live_of, read_warmed
from opsctl.agent.cache.portable import make_portable, place
from opsctl.agent.cache.snapshot import copy_until_steady
from opsctl.agent.job_command import asked, read_report, run_command
from opsctl.agent.job_start import start_job
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed, DiskFull
from opsctl.records.cache import WarmthCheck

COPY = "cache"  # in the run's folder
_COUNTED = ("_misses", "_bypasses", "_starts")
_NEEDED = ("fx_misses", "compiler_starts")
_SPARE_BYTES = 64 << 20


def verify(call: Call) -> Any:
    """Start the check that request["spec"] describes, its argv the job's prewarm; returns the RunRecord."""
    spec, env = asked(call)
    live = live_of(call.home, key_for(call.home, env=env.env_id if env else "", uses_env=env is not None))
    _ensure_sense(live)
    copy = f"{{run}}/{COPY}"
    argv = tuple(word.replace("{cache}", copy) for word in spec.argv)
    folders = {"TORCHINDUCTOR_CACHE_DIR": f"{copy}/inductor", "TRITON_CACHE_DIR": f"{copy}/triton"}
    words = ("job", "cache-verify", str(live.root), call.request["job"], "--", *argv)
    located = replace(
        spec,
        argv=(*agent_argv(), *words),
        env=str(env.root) if env else "",
        environment={**folders, **spec.environment},
    )
    return start_job(call, located, has_placeholders=True)


def _ensure_sense(live: LivePaths) -> None:
    files = listing(live.root)
    if not files:
        raise CheckFailed(
            f"the live cache {live.root.name} is empty: a start would be cold",
            hint="`opsctl cache restore` or `opsctl cache prewarm` fills it; this check never does",
        )
    needed = sum(size for size, _ in files.values()) + _SPARE_BYTES
    if (free := shutil.disk_usage(live.root).free) < needed:
        raise DiskFull(
            f"the check needs a copy of {needed / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB are free",
            hint="free space on the target, then try again; the live cache is as it was",
        )


def doubts(report: dict[str, Any], new_files: list[str]) -> tuple[str, ...]:
    """Everything that speaks against a warm cache; pure.

    >>> doubts({"fx_misses": 0, "compiler_starts": 2}, [])
    ('compiler_starts: 2',)
    """
    unsaid = [name for name in _NEEDED if not isinstance(report.get(name), int)]
    found = [f"the prewarm's result.json has no {' and no '.join(unsaid)}: nothing is proved"] if unsaid else []
    found += [f"{name}: {value}" for name, value in report.items() if name.endswith(_COUNTED) and value]
    if report.get("warm") is False and not found:
        found.append("the job itself says that it was not warm")
    if new_files:
        found.append(f"{len(new_files)} files came into the cache, first {new_files[0]}")
    return tuple(found)


def check(live: LivePaths, job: str, argv: tuple[str, ...], progress: jobs.Phases) -> WarmthCheck:
    """Run the prewarm in a copy of the live cache, and judge what it left; the copy goes again."""
    folder = Path.cwd()
    copy = folder / COPY
    try:
        progress.phase("copy", "of the live cache")
        copy.mkdir()
        files = copy_until_steady(live.root, copy)
        make_portable(copy, files, root=str(live.root))
        place(copy, files, root=str(copy))
        before = listing(copy)
        progress.phase("prewarm", " ".join(argv))
        _, seconds = run_command(argv, "prewarm")
        new_files = sorted(listing(copy).keys() - before.keys())
    finally:
        shutil.rmtree(copy, ignore_errors=True)  # the run's folder goes with all that is left
    report = read_report(folder)
    known = read_warmed(live).get(job)
    return WarmthCheck(
        job=job,
        doubts=doubts(report, new_files),
        seconds=seconds,
        cold_s=known.cold_s if known else None,
        num_files=len(files),
        report=report,
        cache_dir=str(live.root),
        run_id=folder.name,
    )


def main(arguments: list[str]) -> int:
    """`AGENT job cache-verify LIVE JOB -- WORD...`."""
    live, job, _, *argv = arguments
    return jobs.run(lambda progress: check(LivePaths(Path(live)), job, tuple(argv), progress), folder=Path.cwd())
