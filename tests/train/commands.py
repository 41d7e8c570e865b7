"""Runs trainer commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trainer

PACKAGE = Path(trainer.__file__).parent


def environment(cache: Path, package: Path) -> dict[str, str]:
    """The environment of a trainer command: its compile cache, and one thread, which cache keys hold."""
    mine = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    return os.environ | mine


def run(*words: str, cache: Path, cwd: Path | None = None, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    """Run a trainer command to its end, with a compile cache; fails the test on a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *words],
        cwd=cwd or cache.parent,
        env=environment(cache, package),
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
