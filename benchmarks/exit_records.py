"""How many exit records are lost or wrong, over endings of all kinds; and how many of N starts at once give a run.

Usage: python benchmarks/exit_records.py [--endings N] [--starts N]. Prints a table; exits 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("opsctl"))
_PATIENCE_S = 60.0
BUSY = 8


class Place:
    """A folder with a configuration, and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "HOME": str(folder / "home")}
        (folder / "home").mkdir()
        settings = {"default_target": "here", "targets": {"here": {}}}
        (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Start one command."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True
        )

    def start(self, name: str, *argv: str) -> Any:
        """Start a run; None where opsctl refused."""
        out, _ = self.popen("train", "start", "--name", name, "--json", "--", *argv).communicate(timeout=_PATIENCE_S)
        return json.loads(out) if out else None


def _await(path: Path) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return json.loads(path.read_text()) if path.exists() else None


def _kill(number: signal.Signals) -> Callable[[Any], None]:
    return lambda run: os.kill(run["run"]["job"]["pid"], number)


def _kill_tmux(run: Any) -> None:
    argv = ["tmux", "-S", run["run"]["socket"], "display-message", "-p", "#{pid}"]
    os.kill(int(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout), signal.SIGKILL)


def _let(run: Any) -> None:
    """It ends by itself."""


Ending = tuple[tuple[str, ...], Callable[[Any], None], tuple[int | None, int | None]]
ENDINGS: dict[str, Ending] = {
    "exit 0": (("true",), _let, (0, None)),
    "exit 1": (("false",), _let, (1, None)),
    "exit 7": (("sh", "-c", "exit 7"), _let, (7, None)),
    "SIGTERM": (("sleep", "60"), _kill(signal.SIGTERM), (None, 15)),
    "SIGKILL": (("sleep", "60"), _kill(signal.SIGKILL), (None, 9)),
    "import error": ((sys.executable, "-c", "import no_such_module"), _let, (1, None)),
    "tmux killed": (("sh", "-c", "sleep 1; exit 3"), _kill_tmux, (3, None)),
}


def ends_right(place: Place, name: str, ending: Ending) -> bool:
    """Whether one run's exit record is there and tells how it ended."""
    argv, fate, expected = ending
    run = place.start(name, *argv)
    if run is None:
        return False
    fate(run)
    record = _await(Path(run["folder"]) / "exit.json")
    return record is not None and [(one["exit_code"], one["signal"]) for one in record["attempts"]] == [expected]


def started_at_once(place: Place, count: int) -> tuple[int, int]:
    """How many of `count` starts of one name gave a run, and how many were refused as busy."""
    starts = [place.popen("train", "start", "--name", "same", "--", "sleep", "600") for _ in range(count)]
    for start in starts:
        start.communicate(timeout=count * _PATIENCE_S)
    codes = [start.returncode for start in starts]
    place.popen("train", "stop", "same", "--grace", "1").communicate(timeout=_PATIENCE_S)
    return codes.count(0), codes.count(BUSY)


def main() -> int:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endings", type=int, default=200)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    print("expected: no exit record lost or wrong, and one run of all starts at once")
    with tempfile.TemporaryDirectory(prefix="exit-records-") as name:
        place = Place(Path(name))
        kinds = list(itertools.islice(itertools.cycle(ENDINGS), options.endings))
        wrong = [kind for number, kind in enumerate(kinds) if not ends_right(place, f"e{number}", ENDINGS[kind])]
        runs, refused = started_at_once(place, options.starts)
    is_kept = not wrong and (runs, refused) == (1, options.starts - 1)
    print("| endings | lost or wrong | starts at once | runs | refused | promise |")
    print("|---|---|---|---|---|---|")
    verdict = "kept" if is_kept else f"BROKEN {wrong}"
    print(f"| {options.endings} | {len(wrong)} | {options.starts} | {runs} | {refused} | {verdict} |")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
