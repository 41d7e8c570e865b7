"""Verdicts on real processes, as `opsctl watch` tells them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.processes import pids
from tests.support.runs import Runs, Smi
from tests.support.until import until
from tests.support.watching import JOBS, Watch, alarms, job, watch

__all__ = ["watch"]
pytestmark = pytest.mark.tmux
STEPPING = job("steps", "--steps", "100000")


def _once(opsctl: Callable[..., Any], code: int, *words: str) -> Any:
    """The state that `watch --once --json` tells when it ends with this code."""
    ended = opsctl("watch", "--once", "--json", *words)
    assert ended.code == code, ended.err or {**ended.json(), "log": "", "run": ""}
    return ended.json()


def _signal(run: dict[str, Any], number: signal.Signals) -> float:
    """Send a signal to the run's job; returns when."""
    moment = time.time()
    os.kill(run["run"]["job"]["pid"], number)
    return moment


def test_a_job_that_ends_well_is_finished(runs: Runs, opsctl: Callable[..., Any]) -> None:
    runs.start(*job("steps", "--steps", "15"))
    ended = opsctl("watch").ok()
    assert "FINISHED  step 15/15" in ended.out
    state = _once(opsctl, 0)
    assert (state["verdict"]["verdict"], state["state"], state["log"][-1]) == ("finished", "over", "training finished")


def test_an_exception_is_a_crash_with_its_place(runs: Runs, watch: Callable[..., Watch]) -> None:
    runs.start(*job("steps", "--steps", "10", "--step-s", "0.1", "--then", "raise"))
    seen = watch()
    assert seen.ended() == 1
    verdict = seen.rows("verdict")[-1]
    assert (verdict["verdict"], verdict["cause"]) == ("crashed", "python_exception")
    assert any("no supervised slot in batch 11" in row for row in verdict["evidence"])
    finding = next(row for row in seen.rows("finding") if row["cause"] == "python_exception")
    rows = (JOBS / "steps.py").read_text().splitlines()
    line = next(number for number, row in enumerate(rows, 1) if "raise ValueError" in row)
    assert finding["where"] == f"{JOBS / 'steps.py'}:{line}"
    assert seen.rows("exit")[0]["attempts"][0]["exit_code"] == 1


def test_an_import_error_is_a_missing_module(runs: Runs, opsctl: Callable[..., Any]) -> None:
    runs.start(*job("steps", "--import", "module_of_nowhere"))
    ended = opsctl("watch")
    assert ended.code == 1, ended
    assert "CRASHED missing_module" in ended.out
    assert "module_of_nowhere" in ended.out


def test_sigkill_is_told_within_seconds(runs: Runs, watch: Callable[..., Watch]) -> None:
    run = runs.start(*STEPPING)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    killed = _signal(run, signal.SIGKILL)
    verdict = seen.wait_for("verdict", verdict="crashed")
    assert verdict["cause"] == "sigkill_unknown"
    assert verdict["time"] - killed < 20.0  # a busy machine; benchmarks/watch.py holds the promise
    assert seen.ended() == 1


def test_a_stopped_process_is_hung_and_lives_again(runs: Runs, watch: Callable[..., Watch]) -> None:
    run = runs.start(*STEPPING)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    stopped = _signal(run, signal.SIGSTOP)
    assert seen.wait_for("verdict", verdict="hung")["time"] - stopped < 40.0  # without that evidence it is a minute
    assert watch("--fail-fast").ended() == 1
    continued = _signal(run, signal.SIGCONT)
    seen.wait_for("verdict", verdict="healthy", since=continued)
    assert seen.process.poll() is None


def test_a_caught_traceback_in_a_run_that_steps_on_is_healthy(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start(*STEPPING, "--caught")
    until(lambda: b"step 60/" in runs.log(run))
    state = _once(opsctl, 0)
    assert alarms(state["verdict"]) == []
    assert b"ValueError: no supervised slot in batch 5" in runs.log(run)


@pytest.mark.torch
def test_torch_at_its_recompile_limit_is_eager_fallback(
    runs: Runs, opsctl: Callable[..., Any], watch: Callable[..., Watch]
) -> None:
    one = {"command": [*job("recompiles", "--steps", "100000")], "env": False, "code": False, "expect_compiled": True}
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    (runs.project / "opsctl.yaml").write_text(json.dumps({**settings, "jobs": {"recompiles": one}}))
    run = opsctl("train", "start", "recompiles", "--json").ok().json()
    seen = watch("--fail-fast")
    assert seen.ended(120) == 1
    verdict = seen.rows("verdict")[-1]
    assert (verdict["verdict"], verdict["cause"]) == ("eager_fallback", "recompile_limit")
    assert b"config.recompile_limit (8)" in runs.log(run)


def test_a_stop_with_a_checkpoint_is_75(runs: Runs, opsctl: Callable[..., Any], watch: Callable[..., Watch]) -> None:
    run = runs.start(*STEPPING, "--checkpoint")
    until(lambda: b"step 3/" in runs.log(run))
    seen = watch()
    seen.wait_for("caught_up")
    opsctl("train", "stop").ok()
    assert seen.ended() == 75
    verdict = _once(opsctl, 75)["verdict"]
    assert verdict["verdict"] == "stopped"
    assert verdict["evidence"] == ["ended with status 75: stopped early with a good checkpoint", "checkpoint saved"]


@pytest.mark.parametrize("checkpoint", ["null", '"checkpoints/step-4"'])
def test_a_checkpoint_is_told_only_where_there_is_one(runs: Runs, opsctl: Callable[..., Any], checkpoint: str) -> None:
    result = f'{{"status": "stopped", "checkpoint": {checkpoint}}}'
    run = runs.start("sh", "-c", f"echo '{result}' > result.json; exit 75")
    (evidence, *named) = runs.ended(run)["verdict"]["evidence"]
    if checkpoint == "null":
        assert evidence == "ended with status 75: stopped on request; no checkpoint of it was seen"
    else:
        assert evidence.endswith("with a good checkpoint")
        assert named == ["checkpoints/step-4"]


# --- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an nvidia-smi")
def test_without_nvidia_smi_the_watch_says_so(runs: Runs, watch: Callable[..., Watch]) -> None:
    runs.start(*STEPPING)
    assert watch().wait_for("sample")["gpu_problem"] == "no nvidia-smi on this target"


def test_gpu_numbers_come_from_nvidia_smi(smi: Smi, runs: Runs, watch: Callable[..., Watch]) -> None:
    smi.series("0, GPU-a, NVIDIA H200, 98, 61230, 643\n1, GPU-b, NVIDIA H200, 97, [N/A], 640")
    runs.start(*STEPPING)
    seen = watch()
    gpus = until(lambda: [row["gpus"] for row in seen.rows("sample") if row.get("gpus")])[-1]
    assert [(gpu["index"], gpu["utilization_pct"], gpu["power_w"]) for gpu in gpus] == [(0, 98, 643), (1, 97, 640)]
    assert gpus[0]["used_mib"] == 61230
    assert gpus[1].get("used_mib") is None  # unknown, not zero


def test_a_memory_sawtooth_is_seen_sample_by_sample(smi: Smi, runs: Runs, watch: Callable[..., Watch]) -> None:
    heights = [40000, 52000, 64000, 76000, 88000] * 60  # to be seen however late the watch begins
    smi.series(*(f"0, GPU-a, NVIDIA H200, 60, {used}, 400" for used in heights))
    runs.start(*STEPPING)
    seen = watch()
    wanted = {40000, 52000, 64000, 76000, 88000}
    until(lambda: wanted <= {gpu["used_mib"] for row in seen.rows("sample") for gpu in row.get("gpus", ())})


# --- which run, and links ----------------------------------------------------------------------------


def test_the_newest_live_run_is_watched_before_a_newer_ended_one(runs: Runs, opsctl: Callable[..., Any]) -> None:
    live = runs.start(*STEPPING, name="long")
    runs.ended(runs.start("true", name="short"))
    assert _once(opsctl, 0)["run_id"] == live["run_id"]
    assert _once(opsctl, 0, "short")["verdict"]["verdict"] == "finished"


def test_no_run_yet_is_said_with_a_way_on(runs: Runs, opsctl: Callable[..., Any]) -> None:
    ended = opsctl("watch", "--json")
    assert (ended.code, ended.out) == (2, "")
    assert "train start" in json.loads(ended.err)["error"]["hint"]


def _watching_agents(home: Path) -> list[int]:
    """The agents in this home that answer a watch."""
    return [pid for pid in pids() if (words := _words(pid))[-1:] == ["run-watch"] and str(home) in " ".join(words)]


def _words(pid: int) -> list[str]:
    with contextlib.suppress(OSError):  # it ended in between
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "silent"])
def test_a_lost_agent_is_unknown_and_nothing_is_lost(
    runs: Runs, watch: Callable[..., Watch], how: signal.Signals
) -> None:
    run = runs.start(*job("steps", "--steps", "100000", "--until", "enough"))
    seen = watch()
    seen.wait_for("caught_up")
    (agent,) = _watching_agents(runs.home)
    lost = time.time()
    os.kill(agent, how)
    assert seen.wait_for("link", is_up=False)["time"] - lost < 15.0  # 5 s of silence, and a busy machine
    seen.wait_for("link", is_up=True)
    (runs.folder(run) / "enough").touch()
    assert seen.ended() == 0, seen.rows("status")[-1]
    assert [row["is_up"] for row in seen.rows("link")] == [False, True]
    assert "crashed" not in {row["verdict"] for row in seen.rows("verdict")}
    pieces = seen.rows("log")
    assert all(one["end"] == other["start"] for one, other in itertools.pairwise(pieces))
    text = "".join(row["text"] for row in pieces).splitlines()
    told = [int(row.split()[1].split("/")[0]) for row in text if row.startswith("step")]
    assert told == list(range(told[0], told[-1] + 1))
    assert f"step {told[-1]}/" in runs.log(run).decode().splitlines()[-2], "to the last"
    steps = [row["step"] for row in seen.rows("metrics")]
    assert steps == list(range(steps[0], told[-1] + 1))
