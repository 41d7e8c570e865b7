"""Half an hour of a healthy run, and not one alarm: replayed through the folds in seconds, or live.

Usage: python benchmarks/soak.py [--minutes N] [--seeds N] [--live]. Without --live each seed makes one run's rows,
samples, pauses and kernel noise of that length, which the real folds then judge second by second. Exits 1 on an alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' lively job is the one that runs live

from tests.support.healthy import CALM, HealthyRun, judged  # noqa: E402 - after the path

COMMAND = str(Path(sys.executable).with_name("opsctl"))


def alarms(seed: int, minutes: float) -> list[tuple[float, str, str, tuple[str, ...]]]:
    """Every verdict of one made run that is not calm: when, what, and why."""
    found, before = [], ("", "")
    for moment, verdict in judged(HealthyRun(seed, minutes * 60)):
        pair = verdict.verdict, verdict.cause
        if verdict.verdict not in CALM and pair != before:
            found.append((moment, *pair, verdict.evidence))
        before = pair
    return found


def live(minutes: float) -> list[str]:
    """The verdicts that a watch of the lively job told, if one was not calm."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        (folder / "opsctl.yaml").write_text(json.dumps({"default_target": "here", "targets": {"here": {}}}))
        environment = {**os.environ, "HOME": str(folder / "home")}
        script = str(ROOT / "tests" / "support" / "jobs" / "lively.py")
        words = ("--seconds", str(60 * minutes), "--noisy", "--varying", "--eval-every", "400", "--save-every", "250")
        argv = [COMMAND, "train", "start", "--name", "soak", "--", sys.executable, script, *words, "--step-s", "0.2"]
        subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True)
        argv = [COMMAND, "watch", "--json"]
        out = subprocess.run(argv, cwd=folder, env=environment, check=False, stdout=subprocess.PIPE, text=True).stdout
        rows = [json.loads(row) for row in out.splitlines()]
        told = [f"{row['verdict']} {row['cause']}" for row in rows if row["event"] == "verdict"]
        if not told or told[-1].split()[0] in ("starting", "healthy"):
            raise SystemExit("the watch broke off before the job had ended")
        return [one for one in told if one.split()[0] not in CALM]


def main() -> int:
    """Run and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--live", action="store_true", help="run a lively job for so long instead")
    options = parser.parse_args()
    print("expected: no alarm")
    if options.live:
        told = live(options.minutes)
        print(f"{options.minutes:g} minutes live: {told or 'no alarm'}")
        return bool(told)
    print("| seed | alarms in a run of these minutes | minutes | took s |")
    print("|---|---|---|---|")
    bad = 0
    for seed in range(options.seeds):
        began = time.monotonic()
        found = alarms(seed, options.minutes)
        bad += len(found)
        print(f"| {seed} | {found or 'none'} | {options.minutes:g} | {time.monotonic() - began:.1f} |", flush=True)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
