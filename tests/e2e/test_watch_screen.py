"""The live screen on real terminals: what it shows, that it is harmless, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs, Smi
from tests.support.terminal import Terminal
from tests.support.until import until
from tests.support.watching import COMMAND, job

pytestmark = pytest.mark.tmux


@pytest.fixture
def terminal(project: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*words: str, width: int = 80, height: int = 24, **environment: str) -> Terminal:
        socket = tmp_path / f"terminal{len(opened)}.sock"
        argv = (COMMAND, *words)
        opened.append(Terminal(argv, folder=project, socket=socket, width=width, height=height, **environment))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_the_screen_fits_80_by_24_and_ends_on_the_verdict(runs: Runs, terminal: Callable[..., Terminal]) -> None:
    run = runs.start(*job("steps", "--steps", "100000"))
    shown = terminal("watch")
    until(lambda: b"step 40/" in runs.log(run))
    screen = (
        shown.wait_for(run["run_id"], "HEALTHY", "steps/s", "loss", "job  1 process", "step ").rstrip("\n").split("\n")
    )
    assert len(screen) == 24
    assert screen[0].startswith(run["run_id"])
    assert any(row.startswith("step ") and "\u2500" in row for row in screen)
    os.kill(runs.job_pid(run), signal.SIGKILL)
    text = shown.wait_for("CRASHED", "sigkill", "status=1")
    assert text.lstrip().startswith(run["run_id"])  # the page is all there, the live screen is gone


def test_ctrl_c_leaves_the_run_alone(runs: Runs, terminal: Callable[..., Terminal], opsctl: Callable[..., Any]) -> None:
    runs.start(*job("steps", "--steps", "100000"))
    shown = terminal("watch")
    shown.wait_for("step", "HEALTHY")
    shown.press("C-c")
    assert "the run itself goes on" in shown.wait_for("status=130")
    assert opsctl("train", "status", "--json").json()["state"] == "running"


def test_without_colour_and_wide(runs: Runs, terminal: Callable[..., Terminal]) -> None:
    runs.start(*job("steps", "--steps", "100000"))
    shown = terminal("watch", width=160, height=50, NO_COLOR="1")
    shown.wait_for("HEALTHY", "steps/s")
    text = shown.text(colours=True)
    assert "\x1b[" not in text.replace("\x1b[0m", "").replace("\x1b[39m", ""), "neither colours nor bold"


def test_a_dumb_terminal_gets_rows(runs: Runs, terminal: Callable[..., Terminal]) -> None:
    runs.start(*job("steps", "--steps", "30"))
    shown = terminal("watch", TERM="dumb")
    assert "FINISHED  step 30/30" in shown.wait_for("status=0")


def test_gpus_are_drawn(smi: Smi, runs: Runs, terminal: Callable[..., Terminal]) -> None:
    polls = [f"0, GPU-a, NVIDIA H200, 98, {used}, 643\n1, GPU-b, NVIDIA H200, 7, 512, 90" for used in (61230, 81230)]
    smi.series(*polls * 5)
    runs.start(*job("steps", "--steps", "100000"))
    shown = terminal("watch").wait_for("2 x NVIDIA H200", "98 %", "643 W", "0.5 GiB")
    assert any(row.startswith("  0  ") and ("59.8 GiB" in row or "79.3 GiB" in row) for row in shown.splitlines())


def test_a_job_cannot_write_to_the_watchers_terminal(runs: Runs, terminal: Callable[..., Terminal]) -> None:
    runs.start(*job("hostile"))
    shown = terminal("watch")
    text = shown.wait_for("after the storm")
    assert text.lstrip().startswith("job-")  # neither cleared nor scrolled away
    assert "HEALTHY" in text or "STARTING" in text
