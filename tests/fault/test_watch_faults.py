"""Real faults, told by a watch over SSH from a job in a Docker container."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.faults import (
    FAULTS,
    SHARED_FILE,
    STEPS,
    Fault,
    evidence_time,
    send_signal,
    settings,
    small_container,
)
from tests.support.place import ran
from tests.support.runs import NVIDIA_SMI
from tests.support.sshd import Sshd
from tests.support.until import until
from tests.support.watching import Watch, alarms, watch

__all__ = ["watch"]
pytestmark = [pytest.mark.ssh, pytest.mark.docker, pytest.mark.tmux]
Opsctl = Callable[..., Ended]
WITHIN_S = 20.0  # far less than a person takes; how soon is measured by benchmarks/watch.py
SMI = '#!/bin/sh\nNVIDIA_SMI_PLAN=/tmp/plan exec python3 -SE /tmp/plan/nvidia_smi "$@"\n'


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """A container with little memory and a small /dev/shm, and nvidia-smi's stand-in with two busy GPUs."""
    with small_container() as name:
        ran("docker", "exec", name, "mkdir", "-p", "/tmp/plan")
        ran("docker", "cp", str(NVIDIA_SMI), f"{name}:/tmp/plan/nvidia_smi")
        _put(name, "/usr/local/bin/nvidia-smi", SMI)
        ran("docker", "exec", name, "chmod", "755", "/usr/local/bin/nvidia-smi")
        columns = "index, uuid, name, utilization.gpu, memory.used, power.draw"
        _put(
            name, "/tmp/plan/series.csv", f"{columns}\n0, GPU-a, H200, 97, 61230, 600\n1, GPU-b, H200, 97, 61230, 600\n"
        )
        yield name


def _put(container: str, path: str, text: str) -> None:
    argv = ("docker", "exec", "-i", container, "sh", "-c", 'cat > "$1"', "sh", path)
    subprocess.run(argv, input=text, text=True, check=True, timeout=120)


@pytest.fixture
def far(small: str, sshd: Sshd, project: Path) -> str:
    """The container as the project's target, behind sshd."""
    (project / "opsctl.yaml").write_text(settings(sshd.settings, small, f"/tmp/{secrets.token_hex(4)}"))
    return small


def _started(opsctl: Opsctl, source: str) -> dict[str, Any]:
    run: dict[str, Any] = opsctl("train", "start", "--name", "job", "--json", "--", "python3", "-c", source).ok().json()
    return run


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_told_soon_after_its_evidence(
    fault: Fault, far: str, opsctl: Opsctl, watch: Callable[..., Watch]
) -> None:
    run = _started(opsctl, fault.source)
    seen = watch()
    try:
        signalled = send_signal(fault, far, run, seen)
        verdict = seen.wait_for("verdict", verdict=fault.verdict, cause=fault.cause)
        others = [row["cause"] for row in alarms(*seen.rows("verdict")) if row["verdict"] == fault.verdict]
        assert set(others) == {fault.cause}
        if fault.verdict == "crashed" and fault.name != "thread exception":
            assert seen.ended() == 1
        late_s = verdict["time"] - evidence_time(fault, verdict, seen.rows, signalled)
        assert late_s < WITHIN_S
    finally:
        opsctl("train", "stop", "job", "--grace", "1")
        ran("docker", "exec", far, "rm", "-f", SHARED_FILE)


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("fail Failed to initialize NVML: Unknown Error", "Unknown Error"),
        ("fail Unable to determine the device handle for GPU 0000:41:00.0: GPU is lost.", "GPU is lost"),
        ("hang", "does not answer"),
    ],
    ids=["error", "lost", "hang"],
)
def test_a_sick_driver_does_not_alarm_while_steps_come(
    mode: str, problem: str, far: str, opsctl: Opsctl, watch: Callable[..., Watch]
) -> None:
    _put(far, "/tmp/plan/mode", "ok")
    _started(opsctl, STEPS + "steps(100000)\n")
    seen = watch()
    try:
        seen.wait_for("verdict", verdict="healthy")
        until(lambda: any(row.get("gpus") for row in seen.rows("sample")))
        _put(far, "/tmp/plan/mode", mode)
        until(lambda: any(problem in row.get("gpu_problem", "") for row in seen.rows("sample")))
        state = json.loads(opsctl("watch", "--once", "--json").ok().out)
        assert state["verdict"]["cause"] in ("ok", "throughput_drop")
        assert alarms(*seen.rows("verdict")) == []
    finally:
        _put(far, "/tmp/plan/mode", "ok")
        opsctl("train", "stop", "job", "--grace", "1").ok()
