"""Tries a job's topology before hours go into it: its preflight command as a run on the target. Never prints."""

from __future__ import annotations

from dataclasses import replace

from opsctl.ops.job_command import job_command, start
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.train import check_words
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.records.preflight import PreflightOutcome


def preflight(
    workspace: Workspace, job_name: str | None = None, *, words: tuple[str, ...] = (), on_progress: OnProgress = unheard
) -> PreflightOutcome:
    """Run the job's `preflight` command, with more `words`, in its environment and on its GPUs, to its end.

    Raises ConfigError where the job has none, Busy, CheckFailed (no environment), CommandFailed.
    """
    command = job_command(workspace, job_name, "preflight", usage="opsctl train preflight JOB")
    check_words(words, command.job, "preflight")
    whole = replace(command, argv=(*command.argv, *words))
    run = start(workspace, "preflight", whole, kind="preflight", why="preflight", on_progress=on_progress)
    return from_json(PreflightOutcome, follow(workspace, run, on_progress=on_progress))
