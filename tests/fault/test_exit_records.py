"""Exit records over SSH into a Docker container, for endings of all kinds, the kernel's own among them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "exit_records.py"
NUM_ENDINGS, NUM_STARTS = 20, 5  # the promise is 200 and 20


@pytest.mark.ssh
@pytest.mark.docker
@pytest.mark.tmux
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_ending_is_lost_or_told_wrong_over_ssh_and_docker() -> None:
    words = ("--over", "ssh+docker", "--endings", str(NUM_ENDINGS), "--starts", str(NUM_STARTS))
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"| ssh+docker | {NUM_ENDINGS} | 0 | {NUM_STARTS} | 1 | {NUM_STARTS - 1} |" in done.stdout
