"""What the recorder of a run costs: its share of a core and its memory, at 2 samples and 10 rows a second.

Usage: python benchmarks/recorder_cost.py [--seconds N] [--gpus 0,8]. Prints one table; exits 1 where the promise is
broken. GPUs are the stand-in for nvidia-smi, whose own cost is not counted; with them the job writes metrics too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CORE_LIMIT_PCT = 1.0
MEMORY_LIMIT_MIB = 40.0
COMMAND = str(Path(sys.executable).with_name("opsctl"))
JOB = """
import itertools, json, sys, time
metrics = open("metrics.jsonl", "w", buffering=1) if sys.argv[1:] else None
for step in itertools.count(1):
    print(f"step {step}/100000 loss={4 / step:.4f} tokens/s=12345.6", flush=True)
    if metrics:
        row = {"time": time.time(), "step": step, "num_steps": 100000, "loss": 4 / step, "tokens_per_s": 12345.6}
        counters = {"compiles": 12, "recompiles": 0, "graph_breaks": 0, "memory_allocated_mib": 41234.5}
        metrics.write(json.dumps({**row, "phase": "train", **counters}) + "\\n")
    time.sleep(0.1)
"""
_SMI = Path(__file__).resolve().parents[1] / "tests" / "support" / "nvidia_smi"
_COLUMNS = "index, uuid, pci.bus_id, name, utilization.gpu, memory.used, memory.total, power.draw, power.limit"


def cpu_s(pid: int) -> float:
    """The time that a process has had a core, to the nanosecond where the kernel counts so."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def peak_mib(pid: int) -> float:
    """The most memory that a process has held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else float("nan")


def stand_in(folder: Path, num_gpus: int) -> dict[str, str]:
    """The variables with which nvidia-smi shows so many busy GPUs; with 0 there is none."""
    if not num_gpus:
        return {}
    bins = folder / "bin"
    bins.mkdir()
    (bins / "nvidia-smi").symlink_to(_SMI)
    rows = [
        f"{n}, GPU-{n}, 00000000:{n + 1:02X}:00.0, NVIDIA H200, 97, 61230, 143771, 612.40, 700" for n in range(num_gpus)
    ]
    (folder / "series.csv").write_text("\n".join([_COLUMNS, *rows]) + "\n")
    return {"PATH": f"{bins}{os.pathsep}{os.environ['PATH']}", "NVIDIA_SMI_PLAN": str(folder)}


def opsctl(folder: Path, *words: str, **variables: str) -> Any:
    """What one command says with --json."""
    environment = {**os.environ, "HOME": str(folder / "home"), **variables}
    argv = [COMMAND, *words, "--json"]
    return json.loads(subprocess.run(argv, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def measure(folder: Path, seconds: float, num_gpus: int) -> tuple[float, float]:
    """Percent of a core and MiB of one run's recorder."""
    (folder / "home").mkdir()
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, str(folder / "job.py"), *(["metrics"] if num_gpus else [])]
    job = {"command": command, "env": False, "code": False, "sample_period_s": 0.5}
    settings = {"default_target": "here", "targets": {"here": {}}, "jobs": {"small": job}}
    (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML
    run = opsctl(folder, "train", "start", "small", **stand_in(folder, num_gpus))
    pid = run["run"]["recorder"]["pid"]
    try:
        time.sleep(3)  # its start is not its running cost
        begin, started = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(pid) - begin) / (time.monotonic() - started)
        return 100 * share, peak_mib(pid)
    finally:
        opsctl(folder, "train", "stop", "--grace", "1")


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", default="0,8", help="numbers of GPUs, separated by commas")
    options = parser.parse_args()
    print(f"expected: at most {CORE_LIMIT_PCT:g} % of a core and {MEMORY_LIMIT_MIB:g} MiB, nvidia-smi's own apart")
    print("| GPUs | seconds | % of a core | MiB | promise |")
    print("|---|---|---|---|---|")
    is_kept = True
    for num_gpus in map(int, options.gpus.split(",")):
        with tempfile.TemporaryDirectory(prefix="recorder-cost-") as name:
            share_pct, memory_mib = measure(Path(name), options.seconds, num_gpus)
        is_good = share_pct <= CORE_LIMIT_PCT and memory_mib <= MEMORY_LIMIT_MIB
        is_kept = is_kept and is_good
        verdict = "kept" if is_good else "BROKEN"
        print(f"| {num_gpus} | {options.seconds:g} | {share_pct:.2f} | {memory_mib:.1f} | {verdict} |", flush=True)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
