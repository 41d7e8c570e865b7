"""What the recorder of a run costs: its share of a core and its memory, at 2 samples and 10 rows a second.

Usage: python benchmarks/recorder_cost.py [--seconds N]. Prints one table; exits 1 where the promise is broken.
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
import itertools, time
for step in itertools.count(1):
    print(f"step {step}/100000 loss={4 / step:.4f} tokens/s=12345.6", flush=True)
    time.sleep(0.1)
"""


def cpu_s(pid: int) -> float:
    """The time that a process has had a core, to the nanosecond where the kernel counts so."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def peak_mib(pid: int) -> float:
    """The most memory that a process has held."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) / 1024 if found else float("nan")


def opsctl(folder: Path, *words: str) -> Any:
    """What one command says with --json."""
    environment = {**os.environ, "HOME": str(folder / "home")}
    argv = [COMMAND, *words, "--json"]
    return json.loads(subprocess.run(argv, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def measure(folder: Path, seconds: float) -> tuple[float, float]:
    """Percent of a core and MiB of one run's recorder."""
    (folder / "home").mkdir()
    (folder / "job.py").write_text(JOB)
    job = {"command": [sys.executable, str(folder / "job.py")], "env": False, "code": False, "sample_period_s": 0.5}
    settings = {"default_target": "here", "targets": {"here": {}}, "jobs": {"small": job}}
    (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML
    run = opsctl(folder, "train", "start", "small")
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
    seconds = parser.parse_args().seconds
    print(f"expected: at most {CORE_LIMIT_PCT:g} % of a core and {MEMORY_LIMIT_MIB:g} MiB, nvidia-smi's own apart")
    with tempfile.TemporaryDirectory(prefix="recorder-cost-") as name:
        share_pct, memory_mib = measure(Path(name), seconds)
    is_kept = share_pct <= CORE_LIMIT_PCT and memory_mib <= MEMORY_LIMIT_MIB
    print("| seconds | % of a core | MiB | promise |")
    print("|---|---|---|---|")
    print(f"| {seconds:g} | {share_pct:.2f} | {memory_mib:.1f} | {'kept' if is_kept else 'BROKEN'} |")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
