"""Kernel rows: which event, whose, and what to do."""

from __future__ import annotations

import pytest

from opsctl.detect.context import Context
from opsctl.detect.kernel import Kernel, KernelEvent


def event(text: str, **context: object) -> KernelEvent | None:
    kernel, found = Kernel(Context(**context)), None  # type: ignore[arg-type]
    for row in text.splitlines():
        found = kernel.observe(row, 0.0, 0) or found
    return found


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "[1.0] NVRM: Xid (PCI:0000:2b:00): 31, pid=771, name=python3, MMU Fault: ENGINE GRAPHICS",
            "illegal_memory_access",
        ),
        ("NVRM: Xid (0000:03:00): 13, Ch 0000007e, engmask 00000101", "gpu_exception"),
        (
            "[1.0] NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "gpu_lost",
        ),
        ("[1.0] NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 0 caused by previous Xid 149", "nvlink_error"),
        ("[1.0] NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 0", ""),
        ("[1.0] NVRM: Xid (PCI:0000:dc:00): 777, pid=7, name=python3, something new", "hardware_warning"),
        (
            "[1.0] NVRM: Xid (PCI:0000:dc:00): 119, pid=7, name=python, Timeout after 6s of waiting for RPC",
            "driver_hang",
        ),
        ("[1.0] NVRM: API mismatch: the client has the version 565.57, but this module has 550.54.", "driver_mismatch"),
        ("[1.0] python3.10[771]: segfault at 60 ip 00007 sp 0000 error 4 in libc10_cuda.so[7f+5c000]", "segfault"),
        ("[1.0] traps: python[771] general protection fault ip:7f sp:7f error:0 in libtorch.so[7f+1]", "segfault"),
        ("[1.0] Out of memory: Killed process 771 (python3) total-vm:1kB", "host_oom_killed"),
        ("[1.0] Out of memory: Kill process 771 (python) score 901 or sacrifice child", "host_oom_killed"),
        ("[1.0] Memory cgroup out of memory: Killed process 771 (python) total-vm:1kB", "host_oom_killed"),
        ("[1.0] INFO: task nvidia-smi:625705 blocked for more than 120 seconds.", "driver_hang"),
        ("[1.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 31 egress packet error", "nvlink_error"),
    ],
)
def test_what_a_row_means(text: str, cause: str) -> None:
    found = event(text)
    assert found is not None
    assert found.cause == cause
    assert found.advice


@pytest.mark.parametrize(
    "text",
    [
        "[1.0] docker0: port 1(veth1) entered disabled state",
        "[1.0] nvidia-uvm: Loaded the UVM driver",
        "",
        "NVRM: loading",
    ],
)
def test_rows_without_meaning(text: str) -> None:
    assert event(text) is None


XID = "NVRM: Xid (PCI:0000:1b:00): 31, pid={}, name={}, MMU Fault"


@pytest.mark.parametrize(
    ("pid", "name", "own"),
    [(771, "python3", True), (775, "python3", True), (99771, "python3", False), (775, "chrome", False)],
)
def test_whose_an_event_is_by_its_pid(pid: int, name: str, own: bool) -> None:
    found = event(XID.format(pid, name), pid=771)
    assert found is not None
    assert found.is_own is own


@pytest.mark.parametrize("is_own", [True, False])
def test_what_was_looked_up_outranks_every_guess(is_own: bool) -> None:
    found = Kernel(Context(pid=771)).observe(XID.format(775, "python3"), 0.0, 0, is_own=is_own)
    assert found is not None
    assert found.is_own is is_own


@pytest.mark.parametrize(("bus", "own"), [("0000:1b:00.0", True), ("0000:9a:00.0", False)])
def test_whose_an_event_is_by_its_gpu(bus: str, own: bool) -> None:
    found = event(XID.format(1, "python3"), pid=771, gpu_bus_ids=(bus,))
    assert found is not None
    assert found.is_own is own


def test_an_event_that_names_nobody_is_nobodys() -> None:
    found = event("NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, fallen off the bus", pid=771)
    assert found is not None
    assert found.is_own is None


def test_a_bus_named_some_rows_before() -> None:
    rows = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed\nNVRM: fallen off the bus"
    found = event(rows, gpu_bus_ids=("0000:b3:00.0",))
    assert found is not None
    assert (found.cause, found.is_own) == ("gpu_lost", True)


def test_the_gravest_own_event_is_the_root() -> None:
    kernel = Kernel(Context(pid=771))
    for row in (
        XID.format(771, "python"),
        "NVRM: Xid (PCI:0000:1b:00): 48, pid=771, name=python, DBE",
        XID.format(99999, "python"),
    ):
        kernel.observe(row, 0.0, 10)
    root = kernel.root(10, within=3)
    assert root is not None
    assert root.cause == "ecc_error"
    assert kernel.root(20, within=3) is None, "steps followed"
