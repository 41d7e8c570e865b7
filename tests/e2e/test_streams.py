"""The command where the place around it is odd: a stream that refuses, a senseless width, a home without room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = "cannot write the output: No space left on device"


def _run(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`opsctl` by a shell, which opens and closes its streams; OPSCTL stands for the command."""
    command = script.replace("OPSCTL", f"'{sys.executable}' -m opsctl")
    argv = ("sh", "-c", command)
    return subprocess.run(argv, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.fixture
def folder(project: Path, tmp_path: Path) -> Path:
    (project / "opsctl.yaml").write_text(f"default_target: a\ntargets: {{a: {{home: {tmp_path}/target}}}}\n")
    return project


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("OPSCTL status >/dev/full", 5, FULL),
        ("OPSCTL status --json >/dev/full", 5, FULL),
        ("OPSCTL --help >/dev/full", 5, "No space left on device"),
        ("OPSCTL exec -- echo hello >/dev/full", 125, FULL),
        ("OPSCTL status >&-", 5, "cannot write the output: Bad file descriptor"),
        ("OPSCTL status --json >&- <&-", 5, "cannot write the output: Bad file descriptor"),
        ("OPSCTL status 2>&- >/dev/full", 5, ""),
        ("OPSCTL exec -- echo hello >&-", 125, "cannot write the output: Bad file descriptor"),
        ("OPSCTL status -t other 2>/dev/full", 3, ""),
    ],
)
def test_a_stream_that_takes_nothing_is_told(folder: Path, command: str, code: int, said: str) -> None:
    done = _run(folder, command)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("error") <= 1 + ("--json" in command)
    assert "bug" not in done.stderr


@pytest.mark.parametrize("width", ["abc", "0", "-5", ""])
def test_a_senseless_width_is_none(folder: Path, width: str) -> None:
    done = _run(folder, "OPSCTL status", COLUMNS=width)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert len(rows) > 5
    assert max(map(len, rows)) > 50  # not folded to nothing


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
from opsctl.cli.entry import main
main()
"""


def test_an_interrupt_while_it_still_loads_is_one(folder: Path) -> None:
    argv = (sys.executable, "-c", INTERRUPTED, "status")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_home_that_cannot_keep_the_agent_is_no_obstacle(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()  # root may write anywhere, but not below a file
    done = _run(folder, "OPSCTL exec -- echo hello", XDG_CACHE_HOME=str(tmp_path / "no-folder"))
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_a_file_that_finds_no_room_is_named(project: Path) -> None:
    done = _run(project, "ulimit -f 0; OPSCTL init --local")
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith(f"error: cannot use {project}/opsctl.yaml: File too large\n")
    assert list(project.iterdir()) == []
