"""A run of several ranks, as their launcher sees it: it starts them and says how they ended. It loads no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.endings import outcome
from trainer.launch import launch
from trainer.metrics import say
from trainer.nodes import Nodes
from trainer.result import rank_file, write_run_result


def run_ranks(words: Sequence[str], *, num_ranks: int, nodes: Nodes, uses_gpus: bool, folder: Path) -> int:
    """Run `python -m trainer WORD...` as `num_ranks` ranks on each node, in `folder`; return the run's exit status.

    The first node writes the run's result; nodes share the folder.
    """
    if nodes.size > 1:
        say(f"machine {nodes.rank} of {nodes.size} meets the others at {nodes.endpoint}")
    launched = launch(
        ("-m", "trainer", *words),
        num_ranks=num_ranks,
        nodes=nodes,
        uses_gpus=uses_gpus,
        result_file=lambda rank: folder / rank_file(rank),
    )
    status, failure = outcome(launched.endings, stopped_by=launched.stopped_by)
    if failure is not None:
        say(f"rank {failure.rank} failed first: {failure.cause}")
    if nodes.rank == 0:  # all nodes share the folder
        write_run_result(folder, launched.endings, status, failure)
    return status
