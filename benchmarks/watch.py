"""What detection costs and how soon it knows: the log's scan, the given cases, real faults over SSH and Docker.

Usage: python benchmarks/watch.py [--only scan,folds,cases,faults] [--size MIB] [--tries N]. Prints one table a
part; exits 1 where a promise is broken. Speed counts per second of a core, so that other load does not tell. The
recorder's own cost is recorder_cost.py's part.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' faults and services are what is measured

from opsctl.detect import lines, watcher  # noqa: E402 - after the path
from opsctl.ops.diagnose import case_in, diagnose  # noqa: E402 - after the path
from opsctl.records.events import GpuSample, Sample  # noqa: E402 - after the path
from tests.support.cases import folders  # noqa: E402 - after the path
from tests.support.faults import (  # noqa: E402 - after the path
    FAULTS,
    SHARED_FILE,
    Fault,
    evidence_time,
    send_signal,
    settings,
    small_container,
)
from tests.support.sshd import running_sshd  # noqa: E402 - after the path
from tests.support.watching import Watch  # noqa: E402 - after the path

COMMAND = str(Path(sys.executable).with_name("opsctl"))
SCAN_MB_S, SCAN_GROWTH_MIB, VERDICT_S = 5.0, 16.0, 1.0
ROW = "2026-11-02 10:00:{:02d} INFO trainer: step {}/1000000 | loss {:.4f} | grad_norm 0.512 | 31,250 tok/s\n"
NOISE = "/srv/env/lib/python3.11/site-packages/torch/utils/data.py:12: UserWarning: this was deprecated {} steps ago\n"


# --- scan ------------------------------------------------------------------------------------------


def write_log(path: Path, size_mib: int) -> None:
    """A log of steps with other rows between, of about this size."""
    step = 0
    with path.open("w") as file:
        while file.tell() < size_mib << 20:
            rows = []
            for _ in range(5000):
                step += 1
                rows.append(ROW.format(step % 60, step, 2 + math.sin(step) / 10))
                if step % 50 == 0:
                    rows.append(NOISE.format(step))
            file.write("".join(rows))


def scan(size_mib: int) -> bool:
    """MB/s and peak memory of `opsctl diagnose` on a log of a tenth of the size, and of all of it."""
    print(f"expected: at least {SCAN_MB_S:g} MB/s, and the same memory for ten times the log")
    print("| log MiB | seconds | MB/s | CPU MB/s | peak MiB |")
    print("|---|---|---|---|---|")
    peaks, speed = [], 0.0
    with tempfile.TemporaryDirectory(prefix="watch-scan-") as name:
        for mib in (max(1, size_mib // 10), size_mib):
            log = Path(name) / "train.log"
            write_log(log, mib)
            began = time.monotonic()
            child = subprocess.Popen([COMMAND, "diagnose", str(log)], stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            if child.returncode != 0:
                raise SystemExit(f"opsctl diagnose ended with {child.returncode} on a healthy log")
            wall, megabytes = time.monotonic() - began, log.stat().st_size / 1e6
            cpu = used.ru_utime + used.ru_stime
            peaks.append(used.ru_maxrss / 1024)
            speed = megabytes / cpu
            print(f"| {mib} | {wall:.1f} | {megabytes / wall:.1f} | {speed:.1f} | {peaks[-1]:.0f} |", flush=True)
    return speed >= SCAN_MB_S and peaks[1] - peaks[0] <= SCAN_GROWTH_MIB


def folds() -> None:
    """What the folds themselves take of a core for 10 rows and 2 samples a second, by the number of GPUs."""
    print("| GPUs | samples a second | % of a core |")
    print("|---|---|---|")
    for num_gpus in (0, 1, 8, 16):
        gpus = tuple(
            GpuSample(n, f"GPU-{n}", "H200", 97.0, 61230.0, 143771.0, 612.0, 700.0, 60.0) for n in range(num_gpus)
        )
        state, reader = watcher.start(watcher.Context(), 0.0), lines.LineState()
        began, seconds = time.process_time(), 600
        for half in range(2 * seconds):
            now = half / 2
            data = "".join(ROW.format(0, 5 * half + n, 2.0) for n in range(5)).encode()
            reader, rows = lines.split(reader, data, now)
            for row in rows:
                state, _ = watcher.observe(state, row)
            state, _ = watcher.observe(state, Sample(now, gpus))
            watcher.judge(state)
        share = 100 * (time.process_time() - began) / seconds
        print(f"| {num_gpus} | 2 | {share:.2f} |", flush=True)


# --- cases -----------------------------------------------------------------------------------------


def cases() -> None:
    """After which row or poll each given case's verdict was there and stayed."""
    print("| case | verdict | cause | clear after | of rows | ms |")
    print("|---|---|---|---|---|---|")
    times = []
    for folder in folders("watch"):
        found = diagnose(case_in(folder))
        times.append(1000 * found.took_s)
        after = f"{found.decided.kind} {found.decided.number or ''}".strip()
        verdict = found.verdict
        print(f"| {folder.name} | {verdict.verdict} | {verdict.cause} | {after} | {found.num_rows} | {times[-1]:.1f} |")
    print(f"median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")


# --- faults ----------------------------------------------------------------------------------------


class Place:
    """A project whose target is that container behind sshd."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        (folder / "home").mkdir()
        self._environment = {**os.environ, "HOME": str(folder / "home")}

    def opsctl(self, *words: str) -> Any:
        """What one command says with --json; None for one that says nothing."""
        argv = (COMMAND, *words[:2], "--json", *words[2:])
        out = subprocess.run(argv, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, check=False).stdout
        return json.loads(out) if out else None

    def one_try(self, fault: Fault) -> float:
        """Seconds from the evidence to the verdict in a running watch."""
        run = self.opsctl("train", "start", "--name", "job", "--", "python3", "-c", fault.source)
        seen = Watch(self.folder, self.folder / "watch.jsonl")
        try:
            signalled = send_signal(fault, self.name, run, seen)
            verdict = seen.wait_for("verdict", 60, verdict=fault.verdict, cause=fault.cause)
            if fault.verdict == "crashed" and fault.name != "thread exception":
                seen.ended(60)
            return float(verdict["time"]) - evidence_time(fault, verdict, seen.rows, signalled)
        finally:
            seen.close()
            self.opsctl("train", "stop", "job", "--grace", "1")
            subprocess.run(("docker", "exec", self.name, "rm", "-f", SHARED_FILE), check=False)


def faults(tries: int) -> bool:
    """Evidence to verdict, over SSH from a container."""
    print(f"expected: at most {VERDICT_S:g} s at the median over all")
    print("| fault | verdict | tries | median s | worst s |")
    print("|---|---|---|---|---|")
    everything: list[float] = []
    with tempfile.TemporaryDirectory(prefix="watch-faults-") as name, small_container() as box:
        folder = Path(name)
        with running_sshd(folder / "sshd") as server:
            (folder / "opsctl.yaml").write_text(settings(server.settings, box, "/tmp/opsctl-benchmark"))  # noqa: S108 - in a container of its own
            place = Place(folder, box)
            for fault in FAULTS:
                seconds = [place.one_try(fault) for _ in range(tries)]
                everything += seconds
                median, worst = statistics.median(seconds), max(seconds)
                pair = f"{fault.verdict} {fault.cause}"
                print(f"| {fault.name} | {pair} | {tries} | {median:.3f} | {worst:.3f} |", flush=True)
    print(f"median over all: {statistics.median(everything):.3f} s")
    return statistics.median(everything) <= VERDICT_S


def main() -> int:
    """Run the parts that were asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="scan,folds,cases,faults")
    parser.add_argument("--size", type=int, default=1024, help="MiB of the log that is scanned")
    parser.add_argument("--tries", type=int, default=5, help="of each fault")
    options = parser.parse_args()
    parts: dict[str, Callable[[], bool | None]] = {  # None: nothing is promised
        "scan": lambda: scan(options.size),
        "folds": folds,
        "cases": cases,
        "faults": lambda: faults(options.tries),
    }
    is_kept = True
    for name in options.only.split(","):
        print(f"\n## {name}", flush=True)
        is_good = parts[name]()
        is_kept = is_kept and is_good is not False
        if is_good is not None:
            print("kept" if is_good else "BROKEN")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
