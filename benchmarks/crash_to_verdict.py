"""How long after a SIGKILL of the job a running `opsctl watch --json` says `crashed`.

Usage: python benchmarks/crash_to_verdict.py [--tries N]. Prints one table; exits 1 where the promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEDIAN_LIMIT_S = 1.0
P95_LIMIT_S = 2.0
_PATIENCE_S = 60.0
COMMAND = str(Path(sys.executable).with_name("opsctl"))
JOB = """
import itertools, json, time
with open("metrics.jsonl", "w", buffering=1) as metrics:
    for step in itertools.count(1):
        print(f"step {step}/100000 loss={4 / step:.4f}", flush=True)
        metrics.write(json.dumps({"step": step, "loss": 4 / step}) + "\\n")
        time.sleep(0.05)
"""


class Reader:
    """Reads the rows of a watch as they come, with the moment each one came."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._rows: list[tuple[float, dict[str, Any]]] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for row in self._process.stdout:
            with self._news:
                self._rows.append((time.monotonic(), json.loads(row)))
                self._news.notify_all()

    def wait_for(self, event: str, **fields: Any) -> tuple[float, dict[str, Any]]:
        """The first row of this event with these fields, and when it came."""

        def found() -> tuple[float, dict[str, Any]] | None:
            for moment, row in self._rows:
                if row["event"] == event and all(row.get(key) == value for key, value in fields.items()):
                    return moment, row
            return None

        with self._news:
            row = self._news.wait_for(found, timeout=_PATIENCE_S)
        if row is None:
            raise SystemExit(f"no {event} {fields} within {_PATIENCE_S:g} s; the watch said: {self._rows[-3:]}")
        return row


@contextlib.contextmanager
def project() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with a configuration for a small job, and an environment with a home of its own."""
    with tempfile.TemporaryDirectory(prefix="crash-to-verdict-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        (folder / "job.py").write_text(JOB)
        job = {"command": [sys.executable, str(folder / "job.py")], "env": False, "code": False}
        settings = {"default_target": "here", "targets": {"here": {}}, "jobs": {"small": job}}
        (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML
        yield folder, {**os.environ, "HOME": str(folder / "home")}


def one_try(folder: Path, environment: dict[str, str]) -> float:
    """Start the job and a watch, kill the job; seconds until the watch says `crashed`."""
    subprocess.run([COMMAND, "train", "start", "small"], cwd=folder, env=environment, check=True, capture_output=True)
    watch = subprocess.Popen(
        [COMMAND, "watch", "--json"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    reader = Reader(watch)
    _, status = reader.wait_for("status", state="running")
    reader.wait_for("caught_up")
    reader.wait_for("metrics", step=20)
    killed = time.monotonic()
    os.kill(status["run"]["job"]["pid"], signal.SIGKILL)
    seen, _ = reader.wait_for("verdict", verdict="crashed")
    if (code := watch.wait(_PATIENCE_S)) != 1:
        raise SystemExit(f"the watch of a crashed run ended with {code}, not 1")
    return seen - killed


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main() -> int:
    """Run the tries and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    tries = parser.parse_args().tries
    print(f"expected: median at most {MEDIAN_LIMIT_S:g} s, p95 at most {P95_LIMIT_S:g} s, from SIGKILL to the verdict")
    with project() as (folder, environment):
        seconds = [one_try(folder, environment) for _ in range(tries)]
    median, p95 = statistics.median(seconds), percentile(seconds, 0.95)
    is_kept = median <= MEDIAN_LIMIT_S and p95 <= P95_LIMIT_S
    print("| tries | median s | p95 s | worst s | promise |")
    print("|---|---|---|---|---|")
    print(f"| {tries} | {median:.3f} | {p95:.3f} | {max(seconds):.3f} | {'kept' if is_kept else 'BROKEN'} |")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
