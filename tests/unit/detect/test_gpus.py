"""GPU telemetry of a live run: sick answers, lost GPUs, heat, other tenants, idleness."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.detect.gpu import board_w
from opsctl.detect.gpus import same_bus
from opsctl.records.events import GpuProcess, Sample
from tests.unit.detect.watching import Watching, gpu


def stepping(
    watch: Watching, number: int, *gpus: object, first: int = 1, every_s: float = 1.0, problem: str = ""
) -> None:
    for step in range(first, first + number):
        watch.line(f"step {step} loss 2.0", after_s=every_s)
        watch.sample(*gpus, after_s=0.0, problem=problem)  # type: ignore[arg-type]


def test_sick_answers_leave_a_stepping_run_healthy() -> None:
    watch = Watching()
    stepping(watch, 20, gpu())
    for problem in ("Failed to initialize NVML: Driver/library version mismatch", "nvidia-smi does not answer"):
        stepping(watch, 20, first=watch.verdict.step + 1 if watch.verdict.step else 1, problem=problem)
        assert watch.verdict.verdict == "healthy"


def test_a_machine_without_nvidia_smi_is_nothing_to_report() -> None:
    watch = Watching()
    stepping(watch, 20, problem="no nvidia-smi on this target")
    assert watch.pair == ("healthy", "ok")
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", "cause_unknown")


def test_a_driver_that_stops_answering_while_steps_stop_is_a_driver_hang() -> None:
    watch = Watching()
    stepping(watch, 20, gpu())
    for _ in range(140):
        watch.sample(problem="nvidia-smi does not answer")
    assert watch.pair == ("hung", "driver_hang")


def test_one_of_eight_gpus_that_leaves_the_list_is_lost_once_steps_stop() -> None:
    watch = Watching()
    stepping(watch, 20, *(gpu(index) for index in range(8)))
    for _ in range(24):
        watch.sample(*(gpu(index) for index in range(8) if index != 6))
    assert watch.pair == ("crashed", "gpu_lost")
    assert "GPU 6" in watch.verdict.evidence[0]


@pytest.mark.parametrize(("bus", "cause"), [("0000:1B:00.0", "gpu_lost"), ("0000:9A:00.0", "cause_unknown")])
def test_a_sentence_about_a_lost_gpu_names_whose_it_is(bus: str, cause: str) -> None:
    watch = Watching(gpu_bus_ids=("0000:1b:00.0",))
    stepping(watch, 20, gpu())
    for _ in range(140):
        watch.sample(problem=f"Unable to determine the device handle for GPU {bus}: GPU is lost")
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", cause)


def test_a_gpu_that_misses_one_answer_is_not_lost() -> None:
    watch = Watching()
    stepping(watch, 20, gpu(0), gpu(1))
    watch.sample(gpu(0), after_s=15.0)
    watch.sample(gpu(0), gpu(1))
    assert watch.pair == ("healthy", "ok")


@pytest.mark.parametrize("joined_midway", [False, True])
def test_memory_that_rises_in_a_runs_first_minutes_may_be_an_allocators_cache(joined_midway: bool) -> None:
    watch = Watching(joined_midway=joined_midway)
    for step in range(1, 300):
        stepping(watch, 1, gpu(used=20000.0 + 100.0 * step), first=step)
        if step == 200:
            assert watch.pair[1] == ("memory_growth" if joined_midway else "ok")
    assert watch.pair == ("degraded", "memory_growth")


def test_memory_is_flat_once_it_has_stayed_for_seconds() -> None:
    watch = Watching()
    stepping(watch, 3, gpu())
    stepping(watch, 10, gpu(), first=4, every_s=0.2)
    assert not watch.state.gpus.gpus[0].was_flat
    stepping(watch, 2, gpu(), first=14)
    assert watch.state.gpus.gpus[0].was_flat


def test_other_gpus_are_none_of_our_business() -> None:
    watch = Watching(gpus=(1,), gpu_uuids=("GPU-1",))
    stepping(watch, 40, gpu(0, util=0, power=60), gpu(1), replace(gpu(2), problem="GPU is lost"))
    assert watch.pair == ("healthy", "ok")
    assert list(watch.state.gpus.gpus) == [1]


def test_heat_by_the_mask_and_power_caps_that_are_normal() -> None:
    watch = Watching()
    stepping(watch, 20, replace(gpu(), throttle=0x4, temperature_c=70.0))
    assert watch.pair == ("healthy", "ok")
    stepping(watch, 20, replace(gpu(), throttle=0x20, temperature_c=88.0), first=21)
    assert watch.pair == ("degraded", "thermal_throttle")


def test_idle_gpus_of_a_stepping_run_and_unknown_utilisation() -> None:
    watch = Watching()
    stepping(watch, 40, gpu(util=4, power=90))
    assert watch.pair == ("degraded", "gpu_idle")
    unknown = Watching()
    stepping(unknown, 40, replace(gpu(), utilization_pct=None))
    assert unknown.pair == ("healthy", "ok")


def test_another_tenant_matters_when_steps_get_slow() -> None:
    watch = Watching(pid=771)
    rows = (GpuProcess(771, "python", 40000.0, "0"), GpuProcess(9, "server", 30000.0, "0"))
    stepping(watch, 40, gpu())
    watch.event(Sample(watch.now, (gpu(),), gpu_processes=rows))
    assert watch.pair == ("healthy", "ok")
    stepping(watch, 20, gpu(), first=41, every_s=2.5)
    assert watch.pair == ("degraded", "foreign_process")


def test_pending_repairs_are_a_note() -> None:
    watch = Watching()
    stepping(watch, 20, replace(gpu(), maintenance="row remapping is pending"))
    assert watch.pair == ("healthy", "hardware_warning")


def test_a_disk_that_is_full_degrades_a_run_that_goes_on() -> None:
    watch = Watching()
    stepping(watch, 20, gpu())
    watch.event(Sample(watch.now, disk_free_mib=100.0))
    assert watch.pair == ("degraded", "disk_full")


def test_a_spin_of_an_unknown_board_is_known_by_its_own_power() -> None:
    watch = Watching()
    unknown = replace(gpu(), name="X1", power_limit_w=None)
    stepping(watch, 20, unknown)
    for _ in range(24):
        watch.sample(replace(unknown, utilization_pct=100.0, power_w=240.0))
    assert watch.pair == ("hung", "nccl_hang")


def test_a_small_model_that_pauses_at_its_usual_power_does_not_spin() -> None:
    watch = Watching()
    small = gpu(util=100.0, used=8000.0, power=157.0)
    stepping(watch, 30, small)
    for _ in range(80):
        watch.sample(small)
        assert watch.verdict.verdict == "healthy"
    stepping(watch, 30, small, first=31)
    for _ in range(24):
        watch.sample(replace(small, power_w=60.0))
    assert watch.pair == ("hung", "nccl_hang")


def test_waiting_for_data_is_told_from_the_rows_own_columns() -> None:
    watch = Watching()
    for step in range(1, 20):
        watch.line(f"iter: {step}  loss: 2.1  time: 2.30  data: 2.05", after_s=2.3)
    assert watch.pair == ("degraded", "dataloader_bound")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("00000000:B3:00.0", "0000:b3:00", True),
        ("0000:B3:00.0", "0000:B4:00.0", False),
        ("", "", False),
        ("PCI:0000:1b:00", "0000:1B:00.0", True),
    ],
)
def test_spellings_of_a_pci_address(one: str, other: str, same: bool) -> None:
    assert same_bus(one, other) is same


@pytest.mark.parametrize(
    ("name", "watts"),
    [("NVIDIA H100 PCIe", 350), ("NVIDIA H100 80GB HBM3", 700), ("NVIDIA L4", 72), ("NVIDIA L40S", 300), ("x", None)],
)
def test_boards_by_name(name: str, watts: float | None) -> None:
    assert board_w(name) == watts
