"""Adoptions that are killed or starved: no half archive stands, the environment is as it was, a second try works."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.ops.tools import local_uv
from tests.conftest import COMMAND
from tests.support.envs import PYTHON, Envs
from tests.support.runs import processes_with
from tests.support.until import until

pytestmark = pytest.mark.tmux


@pytest.fixture
def large(envs: Envs, tmp_path: Path) -> Path:
    """A virtual environment that takes a while to archive."""
    root = tmp_path / "large"
    subprocess.run([local_uv().path, "venv", "-q", "--python", sys.executable, root], check=True)
    noise = random.Random(1).randbytes(128 << 20)
    (root / "lib" / f"python{PYTHON}" / "site-packages" / "noise.bin").write_bytes(noise)
    return root


def test_an_adoption_killed_in_the_middle_leaves_nothing_half(envs: Envs, large: Path) -> None:
    pipe = subprocess.PIPE
    argv = [COMMAND, "env", "adopt", large]
    with subprocess.Popen(argv, cwd=envs.project, stdout=pipe, stderr=pipe, text=True) as adoption:
        until(lambda: list((envs.home / "adopted").glob(".*.part")))
        (run,) = envs.home.glob("runs/env-adopt-*")
        for pid in processes_with(f"OPSCTL_RUN_ID={run.name}"):
            with contextlib.suppress(ProcessLookupError):  # went with another
                os.kill(pid, signal.SIGKILL)
        out, err = adoption.communicate(timeout=60)
    assert adoption.returncode == 5, out + err
    assert [path.name for path in (envs.home / "adopted").iterdir() if not path.name.endswith(".part")] == []
    assert not (envs.project / "env" / "large.in").exists()
    envs.opsctl("env", "adopt", str(large)).ok()
    assert list((envs.home / "adopted").glob(".*.part")) == []
    assert len(list((envs.home / "adopted").iterdir())) == 2, "an archive and its manifest"


@pytest.mark.root
def test_a_disk_that_is_full_leaves_the_environment_and_no_archive(envs: Envs, large: Path) -> None:
    adopted = envs.home / "adopted"
    adopted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", adopted], check=True)
    try:
        failed = envs.opsctl("env", "adopt", str(large))
        left = list(adopted.iterdir())
    finally:
        subprocess.run(["umount", "--lazy", adopted], check=True)
    assert (failed.code, "no space left" in failed.err) == (5, True), failed.err
    assert left == []
    assert (large / "lib" / f"python{PYTHON}" / "site-packages" / "noise.bin").stat().st_size == 128 << 20
