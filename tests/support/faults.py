"""Faults that really happen to a job, each with the moment of its evidence and the verdict that is due.

A job is Python source for any Python 3; times are of this machine's one clock, on both sides of the link.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.docker import IMAGE
from tests.support.place import ran
from tests.support.watching import Watch

STEPS = """
import sys, time
def steps(number, loss=2.5):
    for step in range(1, number + 1):
        print(f"step {step}/100000 loss {loss:.4f} at {time.time():.3f}", flush=True)
        time.sleep(0.05)
"""
MEMORY = STEPS + "steps(40)\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * (8 << 20)))\n"
SHARED_FILE = "/dev/shm/fault"
DISK = (
    STEPS
    + "steps(40)\nwith open('/dev/shm/fault', 'wb', 0) as file:\n    while True:\n        file.write(bytes(1 << 20))\n"
)
IMPORT = STEPS + "steps(3)\nimport module_of_nowhere\n"
NAN = STEPS + "steps(40)\nsteps(100000, float('nan'))\n"
THREAD = (
    STEPS
    + """
import queue, threading
batches = queue.Queue()
def feed():
    for batch in range(40):
        batches.put(batch)
        time.sleep(0.05)
    raise ValueError("shard 41 is broken")
threading.Thread(target=feed, daemon=True).start()
step = 0
while True:
    batches.get()
    step += 1
    print(f"step {step}/100000 loss 2.5 at {time.time():.3f}", flush=True)
"""
)
MEMORY_LIMIT = "320m"
STOP_EVIDENCE_S = 2.0  # a process that stands still for a shorter time is no finding


@dataclass(frozen=True)
class Fault:
    """`signal` is sent once the job has stepped for a while; 0 leaves it to the job itself."""

    name: str
    source: str
    verdict: str
    cause: str
    signal: int = 0


FAULTS = (
    Fault("SIGKILL", STEPS + "steps(100000)\n", "crashed", "sigkill_unknown", 9),
    Fault("OOM kill by the control group", MEMORY, "crashed", "host_oom_killed"),
    Fault("SIGSTOP", STEPS + "steps(100000)\n", "hung", "cause_unknown", 19),
    Fault("disk full", DISK, "crashed", "disk_full"),
    Fault("import error", IMPORT, "crashed", "missing_module"),
    Fault("NaN", NAN, "degraded", "nan_loss"),
    Fault("thread exception", THREAD, "crashed", "python_exception"),
)

Rows = Callable[[str], list[dict[str, Any]]]


def row_times(text: str, word: str = "step ") -> list[float]:
    """The times that the job itself wrote into its rows."""
    return [float(row.rpartition(" at ")[2]) for row in text.splitlines() if word in row and " at " in row]


def evidence_time(fault: Fault, verdict: dict[str, Any], rows: Rows, signalled: float) -> float:
    """When all that the verdict needs had happened and a watch was there to tell; `rows` are its events by name."""
    return max(_happened(fault, verdict, rows, signalled), min(event["time"] for event in rows("status")))


def _happened(fault: Fault, verdict: dict[str, Any], rows: Rows, signalled: float) -> float:
    text = "".join(event["text"] for event in rows("log"))
    if fault.name == "SIGSTOP":
        return signalled + STOP_EVIDENCE_S
    if fault.name == "NaN":
        return row_times(text, "loss nan")[1]  # one row is no trend
    if fault.name == "thread exception":  # until steps are overdue, the job could do without that thread
        overdue = next(row for row in verdict["evidence"] if "odd after" in row)
        return row_times(text)[-1] + float(overdue.partition("odd after ")[2].split(" ")[0])
    return signalled or float(rows("exit")[0]["attempts"][0]["ended"])


@contextmanager
def small_container() -> Iterator[str]:
    """A container with little memory and a small /dev/shm, which the faults can fill."""
    name = f"opsctl-tests-{secrets.token_hex(4)}"
    limits = ("--memory", MEMORY_LIMIT, "--memory-swap", MEMORY_LIMIT, "--shm-size", "64m")
    ran("docker", "run", "-d", "--init", "--name", name, *limits, IMAGE)
    try:
        yield name
    finally:
        subprocess.run(("docker", "rm", "-f", "-v", name), capture_output=True, timeout=120, check=True)


def send_signal(fault: Fault, container: str, run: dict[str, Any], seen: Watch) -> float:
    """Send the fault's signal once the job is seen to step; when that was, 0 where the job needs none."""
    if not fault.signal:
        return 0.0
    seen.wait_for("verdict", verdict="healthy")
    kill = f"date +%s.%N; kill -{fault.signal} {run['run']['job']['pid']}"
    return float(ran("docker", "exec", container, "sh", "-c", kill))


def settings(host: Any, container: str, home: str) -> str:
    """opsctl.yaml for a target behind that host, in that container."""
    target = {"host": host, "container": {"docker": container}, "home": home}
    return json.dumps({"default_target": "t", "targets": {"t": target}})
