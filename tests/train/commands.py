"""Runs trainer commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trainer

PACKAGE = Path(trainer.__file__).parent


def run(*words: str, cache: Path, cwd: Path | None = None, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    """Run a trainer command to its end, with a compile cache; fails the test on a traceback."""
    mine = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *words],
        cwd=cwd or cache.parent,
        env=os.environ | mine | {"OMP_NUM_THREADS": "1"},  # as in the test's own process: cache keys hold the number
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
