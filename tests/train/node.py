"""One node of a launch, as a program: its launcher and one rank that runs a few lines; prints how all ranks ended."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from trainer.launch import launch
from trainer.nodes import Nodes

if __name__ == "__main__":
    folder, script, rank, endpoint, limit_s = sys.argv[1:]
    launched = launch(
        ("-c", script),
        num_ranks=1,
        uses_gpus=False,
        result_file=lambda rank: Path(folder) / f"result.{rank}",
        nodes=Nodes(2, int(rank), endpoint),
        shutdown_timeout_s=int(limit_s),
    )
    sys.stdout.write(json.dumps(asdict(launched)))
