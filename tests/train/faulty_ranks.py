"""`python -m tests.train.faulty_ranks FAULT train RECIPE --nproc 2`: the trainer's command with a fault in rank 1."""

from __future__ import annotations

import os
import sys
from typing import Any

import trainer.run_ranks
from trainer.cli import main


def as_rank(fault: str, words: list[str]) -> int:
    """Be one of the ranks."""
    if os.environ["RANK"] == "1":
        from tests.train.seal_faults import FAULTS  # all that a rank loads, which a launcher does not

        FAULTS[fault][0]()
    return main(words)


def launch(fault: str, words: list[str]) -> int:
    """Be the launcher; the ranks run this program."""
    plain = trainer.run_ranks.launch

    def launch_faulty(argv: tuple[str, ...], **options: Any) -> Any:
        return plain(("-m", "tests.train.faulty_ranks", fault, *argv[2:]), **options)

    trainer.run_ranks.launch = launch_faulty
    return main(words)


if __name__ == "__main__":
    sys.exit((as_rank if "RANK" in os.environ else launch)(sys.argv[1], sys.argv[2:]))
