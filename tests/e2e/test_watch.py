"""Verdicts on real processes, as `opsctl watch` tells them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.processes import pids
from tests.support.running import JOBS, Runs, Watch
from tests.support.until import until

pytestmark = pytest.mark.tmux
FOREVER = ("--steps", "100000")


@pytest.fixture
def runs(opsctl: Callable[..., Any], project: Path, own_home: Path) -> Iterator[Runs]:
    started = Runs(opsctl, project, own_home)
    yield started
    started.end()


@pytest.fixture
def watch(project: Path, tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def start(*words: str) -> Watch:
        watches.append(Watch(project, tmp_path / f"watch-{len(watches)}.jsonl", *words))
        return watches[-1]

    yield start
    for one in watches:
        one.end()


def _watching_agents(home: Path) -> list[int]:
    """The agents in this home that answer a watch."""
    return [pid for pid in pids() if (words := _words(pid))[-1:] == ["run-watch"] and str(home) in " ".join(words)]


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):  # it ended in between
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


def _once(opsctl: Callable[..., Any], code: int) -> Any:
    """The state that `watch --once --json` tells when it ends with this code."""
    ended = opsctl("watch", "--once", "--json")
    assert ended.code == code, ended
    return ended.json()


def test_a_job_that_ends_well_is_finished(runs: Runs, opsctl: Callable[..., Any]) -> None:
    runs.start("steps", "--steps", "15")
    ended = opsctl("watch").ok()
    assert "FINISHED  step 15/15" in ended.out
    state = _once(opsctl, 0)
    assert (state["verdict"]["verdict"], state["state"], state["log"][-1]) == ("finished", "over", "training finished")


def test_an_exception_is_a_crash_with_its_place(runs: Runs, watch: Callable[..., Watch]) -> None:
    runs.start("steps", "--steps", "10", "--step-s", "0.1", "--then", "raise")
    seen = watch()
    assert seen.ended() == 1
    verdict = seen.rows("verdict")[-1]
    assert (verdict["verdict"], verdict["cause"]) == ("crashed", "python_exception")
    finding = next(row for row in seen.rows("finding") if row["cause"] == "python_exception")
    rows = (JOBS / "steps.py").read_text().splitlines()
    line = next(number for number, row in enumerate(rows, 1) if "raise ValueError" in row)
    assert finding["where"] == f"{JOBS / 'steps.py'}:{line}"
    assert any("no supervised slot in batch 11" in row for row in verdict["evidence"])
    assert seen.rows("exit")[0]["attempts"][0]["exit_code"] == 1


def test_an_import_error_is_a_missing_module(runs: Runs, opsctl: Callable[..., Any]) -> None:
    runs.start("steps", "--import", "module_of_nowhere")
    ended = opsctl("watch")
    assert ended.code == 1, ended
    assert "CRASHED missing_module" in ended.out
    assert "module_of_nowhere" in ended.out


def test_sigkill_is_told_within_two_seconds(runs: Runs, watch: Callable[..., Watch]) -> None:
    run = runs.start("steps", *FOREVER)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    killed = runs.signal(run, signal.SIGKILL)
    verdict = seen.wait_for("verdict", verdict="crashed")
    assert verdict["cause"] == "sigkill_unknown"
    assert verdict["time"] - killed < 2.0
    assert seen.ended() == 1


def test_a_stopped_process_is_hung_and_lives_again(runs: Runs, watch: Callable[..., Watch]) -> None:
    run = runs.start("steps", *FOREVER)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    stopped = runs.signal(run, signal.SIGSTOP)
    assert seen.wait_for("verdict", verdict="hung")["time"] - stopped < 8.0
    assert watch("--fail-fast").ended() == 1
    continued = runs.signal(run, signal.SIGCONT)
    until(lambda: [row for row in seen.rows("verdict") if row["verdict"] == "healthy" and row["time"] > continued])
    assert seen.process.poll() is None


def test_a_caught_traceback_in_a_run_that_steps_on_is_healthy(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("steps", *FOREVER, "--caught")
    runs.wait_for_step(run, 60)
    state = _once(opsctl, 0)
    assert state["verdict"]["verdict"] == "healthy"
    assert any("ValueError: no supervised slot in batch 5" in row for row in state["log"])


@pytest.mark.torch
def test_torch_at_its_recompile_limit_is_eager_fallback(runs: Runs, watch: Callable[..., Watch]) -> None:
    run = runs.start("recompiles", *FOREVER, settings={"expect_compiled": True})
    seen = watch("--fail-fast")
    assert seen.ended(60) == 1
    verdict = seen.rows("verdict")[-1]
    assert (verdict["verdict"], verdict["cause"]) == ("eager_fallback", "recompile_limit")
    assert "config.recompile_limit (8)" in (runs.folder / run / "train.log").read_text()


def test_a_stop_with_a_checkpoint_is_75(runs: Runs, opsctl: Callable[..., Any], watch: Callable[..., Watch]) -> None:
    run = runs.start("steps", *FOREVER, "--checkpoint")
    runs.wait_for_step(run, 3)
    seen = watch()
    seen.wait_for("caught_up")
    opsctl("train", "stop", "steps").ok()
    assert seen.ended() == 75
    assert _once(opsctl, 75)["verdict"]["verdict"] == "stopped"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an nvidia-smi")
def test_without_nvidia_smi_the_watch_says_so(runs: Runs, opsctl: Callable[..., Any]) -> None:
    runs.start("steps", *FOREVER)
    until(lambda: _once(opsctl, 0)["sample"])
    assert "no nvidia-smi" in _once(opsctl, 0)["sample"]["gpu_problem"]


def test_the_newest_live_run_is_watched_before_a_newer_ended_one(runs: Runs, opsctl: Callable[..., Any]) -> None:
    live = runs.start("steps", *FOREVER)
    opsctl("train", "start", "--name", "short", "--", "true").ok()
    until(lambda: (runs.folder / runs.ids()[-1] / "exit.json").exists())
    assert _once(opsctl, 0)["run_id"] == live
    assert opsctl("watch", "short").code == 0


def test_a_lost_agent_is_unknown_and_no_byte_of_the_log_is_lost(
    runs: Runs, watch: Callable[..., Watch], own_home: Path
) -> None:
    runs.start("steps", "--steps", "150")
    seen = watch()
    seen.wait_for("caught_up")
    (agent,) = _watching_agents(own_home)
    os.kill(agent, signal.SIGKILL)
    assert seen.ended() == 0
    assert [row["is_up"] for row in seen.rows("link")] == [False, True]
    assert "crashed" not in {row["verdict"] for row in seen.rows("verdict")}
    pieces = seen.rows("log")
    assert all(one["end"] == other["start"] for one, other in itertools.pairwise(pieces))
    text = "".join(row["text"] for row in pieces).splitlines()
    assert [row.split("/")[0] for row in text if row.startswith("step")] == [f"step {n}" for n in range(1, 151)]
    steps = [row["step"] for row in seen.rows("metrics")]
    assert steps == list(range(1, 151))
