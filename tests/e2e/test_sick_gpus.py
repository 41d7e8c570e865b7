"""nvidia-smi in its moods, live: what is missing is unknown, the rest is shown, and nothing of ours piles up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.runs import Runs, Smi, is_gone
from tests.support.until import until
from tests.support.watching import Watch, alarms, job, watch

__all__ = ["watch"]
pytestmark = pytest.mark.tmux
Opsctl = Callable[..., Ended]
STEPPING = job("steps", "--steps", "100000", "--step-s", "0.05")
COLUMNS = "index, uuid, pci.bus_id, name, utilization.gpu, memory.used, memory.total, power.draw"
EIGHT = [f"{n}, GPU-{n}, 00000000:{n + 1:02X}:00.0, NVIDIA H200, 97, 61230, 143771, 612" for n in range(8)]
OLD_DRIVER = 'Field "clocks_throttle_reasons.active" is not a valid field to query.'


@pytest.fixture
def eight(runs: Runs, smi: Smi) -> Smi:
    """Eight busy GPUs, looked at five times a second."""
    smi.series("\n".join(EIGHT), columns=COLUMNS)
    one = {
        "command": list(STEPPING),
        "env": False,
        "code": False,
        "sample_period_s": 0.2,
        "gpus": list(range(8)),
        "share": True,
    }
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    (runs.project / "opsctl.yaml").write_text(json.dumps({**settings, "jobs": {"eight": one}}))
    return smi


def _start(opsctl: Opsctl) -> dict[str, Any]:
    started: dict[str, Any] = opsctl("train", "start", "eight", "--json").ok().json()
    return started


def _gpus(runs: Runs, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs of the newest sample that has any."""
    found = [row for row in runs.rows(run, "telemetry.jsonl") if "gpus" in row]
    return found[-1]["gpus"] if found else []


def _alive(smi: Smi) -> int:
    pids = [int(row.split()[1]) for row in smi.calls() if row.startswith("start")]
    return len([pid for pid in pids if not is_gone(pid)])


@pytest.mark.parametrize(
    "row",
    [
        "3, GPU-3, 00000000:04:00.0, NVIDIA H200, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]",
        "3, GPU-3, 00000000:04:00.0, NVIDIA H200, [N/A], [N/A], [N/A], [N/A]",
        "3, GPU-3, 00000000:04:00.0, NVIDIA H200, , , ,",
        "3, GPU-3, 00000000:04:00.0, NVIDIA H200 MIG 1g.18gb, [N/A], 12000, 18000, [N/A]",
    ],
    ids=["unknown-error", "n-a", "empty", "mig"],
)
def test_sick_cells_are_unknown_and_the_other_gpus_are_shown(runs: Runs, eight: Smi, opsctl: Opsctl, row: str) -> None:
    eight.series("\n".join([*EIGHT[:3], row, *EIGHT[4:]]), columns=COLUMNS)
    run = _start(opsctl)
    whole = until(lambda: len(found := _gpus(runs, run)) == 8 and found)
    gpus = {gpu["index"]: gpu for gpu in whole}
    assert gpus[2]["used_mib"] == 61230.0
    assert "utilization_pct" not in gpus[3]
    until(lambda: b"step 60/" in runs.log(run))
    state = opsctl("watch", "--once", "--json").ok().json()
    assert alarms(state["verdict"]) == []
    assert not (runs.folder(run) / "recorder.log").read_text()


def test_a_lost_gpu_of_eight_is_found_once_the_steps_stop(
    runs: Runs, eight: Smi, opsctl: Opsctl, watch: Callable[..., Watch]
) -> None:
    whole, without = "\n".join(EIGHT), "\n".join([*EIGHT[:3], *EIGHT[4:]])
    eight.series(*[whole] * 20, without, columns=COLUMNS)
    run = _start(opsctl)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    until(lambda: len(_gpus(runs, run)) == 7)
    assert len(next(row["gpus"] for row in runs.rows(run, "telemetry.jsonl") if "gpus" in row)) == 8
    assert alarms(opsctl("watch", "--once", "--json").ok().json()["verdict"]) == []  # it steps on
    opsctl("exec", "--", "kill", "-STOP", str(runs.job_pid(run))).ok()
    assert seen.wait_for("verdict", verdict="hung")


def test_a_column_that_an_old_driver_refuses_is_left_out(runs: Runs, eight: Smi, opsctl: Opsctl) -> None:
    run = _start(opsctl)
    until(lambda: len(_gpus(runs, run)) == 8)
    eight.mode(f"say {OLD_DRIVER}")
    until(lambda: any("valid field" in row.get("gpu_problem", "") for row in runs.rows(run, "telemetry.jsonl")))
    eight.mode("ok")
    num_calls = len(eight.calls())
    opsctl("exec", "--", "kill", *[row.split()[1] for row in eight.calls()[-1:]]).ok()  # as it ends by itself
    until(lambda: len(eight.calls()) > num_calls)
    until(lambda: len(_gpus(runs, run)) == 8)
    newest = [row for row in eight.calls() if row.startswith("start")][-1]
    assert "clocks_throttle_reasons.active" not in newest
    assert _alive(eight) <= 1


def test_an_error_sentence_is_told_and_the_run_is_healthy(
    runs: Runs, eight: Smi, opsctl: Opsctl, watch: Callable[..., Watch]
) -> None:
    _start(opsctl)
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    eight.mode("fail Failed to initialize NVML: Driver/library version mismatch")
    sample = until(lambda: [row for row in seen.rows("sample") if "version mismatch" in row.get("gpu_problem", "")])
    assert not sample[-1].get("gpus")
    assert alarms(opsctl("watch", "--once", "--json").ok().json()["verdict"]) == []


def test_another_tenant_on_a_full_gpu_is_named(
    runs: Runs, eight: Smi, opsctl: Opsctl, watch: Callable[..., Watch]
) -> None:
    eight.series("\n".join(row.replace("61230", "142000") for row in EIGHT), columns=COLUMNS)
    run = _start(opsctl)
    rows = [
        "gpu_uuid, pid, process_name, used_gpu_memory [MiB]",
        f"GPU-0, {runs.job_pid(run)}, python, 61230 MiB",
        "GPU-0, 1, /usr/bin/ollama, 80000 MiB",
    ]
    (eight.folder / "apps.csv").write_text("\n".join(rows) + "\n")
    seen = watch()
    verdict = seen.wait_for("verdict", verdict="degraded")
    assert verdict["cause"] == "foreign_process"
    assert "pid 1 (/usr/bin/ollama)" in verdict["evidence"][0]
