"""Follows a long job of opsctl's own to its result, over lost links. Never prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opsctl.errors import Disconnected, Unreachable
from opsctl.ops.workspace import Workspace

if TYPE_CHECKING:
    import tenacity

    from opsctl.records.run import RunRecord

OnProgress = Callable[[dict[str, Any]], None]


def unheard(message: dict[str, Any]) -> None:
    """Progress that nobody asked for."""


def reconnecting(on_progress: OnProgress = unheard, text: str = "") -> tenacity.Retrying:
    """Try again after each lost link, of which `text` tells, for as long as it takes: the target's work goes on."""
    import tenacity  # 25 ms that a command with nothing to try again must not pay

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((Disconnected, Unreachable)),
        wait=tenacity.wait_exponential(multiplier=0.2, max=5.0) + tenacity.wait_random(0.0, 0.3),
        before_sleep=lambda state: on_progress({"text": text, "done": None, "total": None}),
        reraise=True,
    )


def follow(workspace: Workspace, run: RunRecord, *, on_progress: OnProgress = unheard) -> Any:
    """The result of the job that `run` is; raises the error that the job ended with.

    A lost link is taken up again: the job goes on meanwhile.
    """
    again = reconnecting(on_progress, "the link was lost; the job goes on, reconnecting")
    try:
        return again(workspace.client.call, "job-follow", {"run": run.run_id}, on_progress=on_progress)
    except KeyboardInterrupt:
        on_progress({"text": f"run {run.run_id} goes on; `opsctl train stop {run.spec.name}` ends it"})
        raise
