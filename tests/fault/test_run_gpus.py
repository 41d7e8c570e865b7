"""GPUs: leased by one run at a time, and telemetry that fails, hangs or is absent without touching the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.runs import Runs, Smi, is_gone
from tests.support.until import until

pytestmark = pytest.mark.tmux


def _configure(runs: Runs, **job: Any) -> None:
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    settings["jobs"] = {"quick": {"command": ["sleep", "600"], "env": False, "code": False, **job}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))


def _start_quick(opsctl: Callable[..., Any], *options: str) -> dict[str, Any]:
    started: dict[str, Any] = opsctl("train", "start", "quick", "--json", *options).ok().json()
    return started


def _samples(runs: Runs, run: dict[str, Any]) -> list[dict[str, Any]]:
    return runs.rows(run, "telemetry.jsonl")


def test_two_runs_cannot_have_one_gpu(runs: Runs, smi: Smi, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sleep", "600", name="one", options=("--gpus", "1"))
    assert run["run"]["gpu_uuids"] == ["GPU-b"]
    refused = opsctl("train", "start", "--name", "two", "--gpus", "0,1", "--", "true")
    assert refused.code == 8
    assert run["run_id"] in refused.err
    runs.start("true", name="beside", options=("--gpus", "0"))
    runs.start("true", name="shared", options=("--gpus", "1", "--share"))
    opsctl("train", "stop", "one").ok()
    until(lambda: not list(runs.home.glob("locks/*.lease")))
    runs.start("true", name="two", options=("--gpus", "0,1"))


def test_the_job_sees_its_gpus_only(runs: Runs, smi: Smi) -> None:
    run = runs.start("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER", options=("--gpus", "1,0"))
    runs.ended(run)
    assert runs.log(run) == b"1,0 PCI_BUS_ID\n"


def test_foreign_memory_is_respected(runs: Runs, smi: Smi, opsctl: Callable[..., Any]) -> None:
    smi.series("0, GPU-a, H200, 90, 61230, 600\n1, GPU-b, H200, 0, 4, 70")
    refused = opsctl("train", "start", "--gpus", "0", "--", "true")
    assert refused.code == 8
    assert "61230 MiB" in refused.err
    opsctl("train", "start", "--name", "idle", "--gpus", "1", "--", "true").ok()
    opsctl("train", "start", "--name", "shared", "--gpus", "0", "--share", "--", "true").ok()


@pytest.mark.parametrize(
    ("gpus", "mode", "code", "words"),
    [
        ("7", "ok", 2, "no GPU 7"),
        ("x", "ok", 2, "no list of numbers"),
        ("0", "fail Failed to initialize NVML: Driver/library version mismatch", 5, "version mismatch"),
    ],
)
def test_gpus_that_cannot_be_had(
    runs: Runs, smi: Smi, opsctl: Callable[..., Any], gpus: str, mode: str, code: int, words: str
) -> None:
    smi.mode(mode)
    refused = opsctl("train", "start", "--gpus", gpus, "--", "true")
    assert (refused.code, words in refused.err) == (code, True), refused.err
    assert not list(runs.home.glob("locks/*.lease"))


def test_no_nvidia_smi(runs: Runs, opsctl: Callable[..., Any]) -> None:
    assert opsctl("train", "start", "--gpus", "0", "--", "true").code == 6
    _configure(runs, sample_period_s=0.2)
    run = _start_quick(opsctl)
    first = until(lambda: _samples(runs, run))[0]
    assert first["gpu_problem"] == "no nvidia-smi on this target"
    assert first["process"]["num_processes"] == 1
    assert "gpus" not in first


def test_samples_hold_what_nvidia_smi_said(runs: Runs, smi: Smi, opsctl: Callable[..., Any]) -> None:
    _configure(runs, sample_period_s=0.2, gpus=[1])
    run = _start_quick(opsctl)
    sample = until(lambda: [one for one in _samples(runs, run) if "gpus" in one])[0]
    (gpu,) = sample["gpus"]
    assert (gpu["index"], gpu["uuid"], gpu["used_mib"], gpu["power_w"]) == (1, "GPU-b", 4.0, 70.0)
    assert "temperature_c" not in gpu


def test_nvidia_smi_that_fails_is_started_again(runs: Runs, smi: Smi, opsctl: Callable[..., Any]) -> None:
    _configure(runs, sample_period_s=0.2)
    run = _start_quick(opsctl)
    until(lambda: any("gpus" in one for one in _samples(runs, run)))
    smi.mode("fail Unable to determine the device handle for GPU0000:41:00.0: Unknown Error")
    until(lambda: any("device handle" in one.get("gpu_problem", "") for one in _samples(runs, run)))
    smi.mode("ok")
    num = len(_samples(runs, run))
    until(lambda: any("gpus" in one for one in _samples(runs, run)[num:]))
    assert not is_gone(runs.job_pid(run))


def test_nvidia_smi_that_hangs_is_killed_and_never_doubled(runs: Runs, smi: Smi, opsctl: Callable[..., Any]) -> None:
    _configure(runs, sample_period_s=0.2)
    run = _start_quick(opsctl)
    until(lambda: any("gpus" in one for one in _samples(runs, run)))
    first = int(smi.calls()[-1].split()[1])
    smi.mode("hang")
    until(lambda: any("does not answer" in one.get("gpu_problem", "") for one in _samples(runs, run)))
    until(lambda: is_gone(first))
    smi.mode("ok")
    num = len(_samples(runs, run))
    until(lambda: any("gpus" in one for one in _samples(runs, run)[num:]), 200)  # the next may hang for its 30 s first
    pids = [int(row.split()[1]) for row in smi.calls() if row.startswith("start")]
    assert len([pid for pid in pids if not is_gone(pid)]) == 1
    opsctl("train", "stop", "--grace", "5").ok()
    until(lambda: all(is_gone(pid) for pid in pids))
