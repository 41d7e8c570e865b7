"""Kernel rows reach a run in a container through its host, while somebody watches."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.faults import STEPS
from tests.support.place import Place, ran
from tests.support.until import until
from tests.support.watching import Watch, watch

__all__ = ["watch"]
pytestmark = [pytest.mark.docker, pytest.mark.tmux]
Opsctl = Callable[..., Ended]
NVRM = "NVRM: Xid (PCI:0000:b3:00)"
XID = f"[{{:.6f}}] {NVRM}: 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


@pytest.fixture
def dmesg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for dmesg shows: no test may write into this machine's kernel log."""
    bins, rows = tmp_path / "bin", tmp_path / "rows"
    bins.mkdir()
    rows.write_text("[    1.000000] Linux version 6.1\n")
    for name, text in (("dmesg", f'exec cat "{rows}"'), ("journalctl", "echo no permission >&2; exit 1")):
        (bins / name).write_text(f"#!/bin/sh\n{text}\n")
        (bins / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bins}{os.pathsep}{os.environ['PATH']}")
    return rows


@pytest.fixture
def run(docker_place: Place, project: Path, opsctl: Opsctl) -> Iterator[dict[str, Any]]:
    """A stepping job in a container of this machine."""
    targets = {"t": docker_place.settings(home=f"/tmp/{secrets.token_hex(4)}", python="python3")}
    (project / "opsctl.yaml").write_text(json.dumps({"default_target": "t", "targets": targets}))
    argv = ("python3", "-c", STEPS + "steps(100000)\n")
    yield opsctl("train", "start", "--name", "job", "--json", "--", *argv).ok().json()
    opsctl("train", "stop", "job", "--grace", "1")


def _show(dmesg: Path, text: str) -> None:
    """Let dmesg show these rows, and never half of them."""
    part = dmesg.with_name("rows.part")
    part.write_text(text)
    part.replace(dmesg)


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def test_an_xid_on_the_host_is_the_cause_of_an_end_inside(
    dmesg: Path, run: dict[str, Any], docker_place: Place, watch: Callable[..., Watch]
) -> None:
    old = XID.format(1.0).replace("79", "48")
    seen = watch()
    seen.wait_for("verdict", verdict="healthy")
    _show(dmesg, old + XID.format(_uptime_s()))
    finding = seen.wait_for("finding", cause="gpu_lost")
    assert "Xid 79" in finding["evidence"][0]
    name = docker_place.container["docker"]
    ran("docker", "exec", name, "kill", "-9", str(run["run"]["job"]["pid"]))
    assert seen.wait_for("verdict", verdict="crashed")["cause"] == "gpu_lost"
    assert not [row for row in seen.rows("finding") if row["cause"] == "ecc_error"]


def test_a_host_that_lets_nobody_read_is_said_and_not_guessed(
    dmesg: Path, run: dict[str, Any], watch: Callable[..., Watch]
) -> None:
    (dmesg.parent / "bin" / "dmesg").write_text("#!/bin/sh\nexit 1\n")
    seen = watch()
    finding = seen.wait_for("finding", cause="telemetry_unavailable")
    assert "readable neither in the container nor on" in finding["summary"]
    assert finding["evidence"] == ["no permission"]
    began = time.time()
    until(lambda: seen.rows("verdict") and time.time() - began > 1)
    assert {row["verdict"] for row in seen.rows("verdict")} <= {"starting", "healthy"}


def _host_pid(container: str, pid: int) -> int:
    """As what this machine numbers a process of a container."""
    for row in ran("docker", "top", container, "-eo", "pid").splitlines()[1:]:
        with contextlib.suppress(OSError):  # gone
            status = Path(f"/proc/{row.strip()}/status").read_text()
            if re.search(rf"^NSpid:.*\s{pid}$", status, re.MULTILINE):
                return int(row)
    raise LookupError(f"no process here is {pid} in {container}")


@pytest.mark.root
def test_a_process_that_the_hosts_kernel_names_is_known_by_its_number_inside(
    dmesg: Path, run: dict[str, Any], docker_place: Place, watch: Callable[..., Watch]
) -> None:
    """A neighbour's fault is no finding; the job's own, in the host's numbers, is why it ended."""
    form = f"[{{:.6f}}] {NVRM}: {{}}, pid={{}}, name=python3, Ch 00000008\n"
    name, inside = docker_place.container["docker"], run["run"]["job"]["pid"]
    seen = watch()
    for text, told in (("[Hardware Error]: Machine check", "Machine check"), (f"{NVRM}: 63, x", "Xid 63")):
        _show(dmesg, f"[{_uptime_s():.6f}] {text}\n")  # after the second, one whole look at the host is over
        until(lambda told=told: any(told in row["evidence"][0] for row in seen.rows("finding") if row["evidence"]))
    now = _uptime_s()
    _show(dmesg, form.format(now, 13, os.getpid()) + form.format(now, 31, _host_pid(name, inside)))
    seen.wait_for("finding", cause="illegal_memory_access")
    ran("docker", "exec", name, "kill", "-9", str(inside))
    assert seen.wait_for("verdict", verdict="crashed")["cause"] == "illegal_memory_access"
    assert not [row for row in seen.rows("finding") if row["cause"] == "gpu_exception"]
