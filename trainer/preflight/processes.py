"""The topology of processes as its launcher sees it: as many ranks as the run has, and what each left.

It loads no compiler: the ranks do, and wait for nothing that the launcher loads first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainer.endings import Ending
from trainer.preflight.report import Counts, Topology, counts_from, together
from trainer.rank_reports import gather_reports
from trainer.signals import StopRequested


def try_processes(words: Sequence[str], *, num_ranks: int, uses_gpus: bool) -> tuple[Topology, list[str]]:
    """Run `python -m trainer preflight WORD...` as ranks; return what they saw, and know of this torch.

    Raises StopRequested where the launch was stopped.
    """
    launched, reports = gather_reports(("preflight", *words), num_ranks=num_ranks, uses_gpus=uses_gpus)
    if launched.stopped_by:
        raise StopRequested(launched.stopped_by)
    parts = [_counts_of(report, one) for report, one in zip(reports, launched.endings, strict=True)]
    return Topology("processes, one a replica", num_ranks, together(parts)), _known(reports)


def _known(reports: Sequence[Mapping[str, Any] | None]) -> list[str]:
    for report in reports:
        if report is not None:
            return list(report["known"])
    from trainer.preflight.releases import known  # it loads the compiler

    return known(torch.__version__)


def _counts_of(report: Mapping[str, Any] | None, ending: Ending) -> Counts:
    """Return what a rank left; a rank that left nothing counts as an exception, named by how it ended."""
    if report is not None:
        return counts_from(report["counts"])
    return Counts(exceptions={f"rank {ending.rank} {ending.cause}": 1})
