"""How many exit records are lost or wrong, over endings of all kinds; and how many of N starts at once give a run.

Usage: python benchmarks/exit_records.py [--over local|ssh+docker] [--endings N] [--starts N]. Prints a table; exits 1
where a promise is broken. `ssh+docker`: a container of the tests behind their sshd, with a memory limit to run into.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' services are those that are measured

from tests.support.docker import docker_place  # noqa: E402 - after the path
from tests.support.place import Place, ran  # noqa: E402 - after the path
from tests.support.sshd import running_sshd  # noqa: E402 - after the path

COMMAND = str(Path(sys.executable).with_name("opsctl"))
_PATIENCE_S = 200.0
_MEMORY = "400m"
BUSY = 8


class Bench:
    """A folder with a configuration of one target, and the way into that past opsctl."""

    def __init__(self, folder: Path, place: Place, host: Any = "local") -> None:
        self.folder = folder
        self.place = place
        self.environment = {**os.environ, "HOME": str(folder / "home")}
        (folder / "home").mkdir()
        target = place.settings(host=host, home="/var/lib/opsctl" if place.init_pid else str(folder / "target"))
        settings = {"default_target": "it", "targets": {"it": target}}
        (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Start one command."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, env=self.environment, stdout=pipe, stderr=pipe, text=True
        )

    def start(self, name: str, *argv: str) -> Any:
        """Start a run; None where opsctl refused."""
        start = self.popen("train", "start", "--name", name, "--json", "--", *argv)
        out, err = start.communicate(timeout=_PATIENCE_S)
        if start.returncode:
            print(f"{name}: train start ended with {start.returncode}: {err}", file=sys.stderr)
        return json.loads(out) if out else None

    def inside(self, *argv: str) -> str:
        """The output of a command where the runs are."""
        front = ("docker", "exec", self.place.container["docker"]) if self.place.init_pid else ()
        return ran(*front, *argv)

    def record(self, run: Any) -> Any:
        """The exit record of a run, once it is there; None if it does not come."""
        path = self.place.outside(f"{run['folder']}/exit.json")
        deadline = time.monotonic() + _PATIENCE_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return json.loads(path.read_text()) if path.exists() else None


def _kill(number: signal.Signals) -> Callable[[Bench, Any], None]:
    def kill(bench: Bench, run: Any) -> None:
        bench.inside("kill", f"-{number}", str(run["run"]["job"]["pid"]))

    return kill


def _kill_tmux(bench: Bench, run: Any) -> None:
    pid = bench.inside("tmux", "-S", run["run"]["socket"], "display-message", "-p", "#{pid}")
    bench.inside("kill", "-9", pid.strip())


def _let(bench: Bench, run: Any) -> None:
    """It ends by itself."""


Ending = tuple[tuple[str, ...], Callable[[Bench, Any], None], tuple[int | None, int | None]]
ENDINGS: dict[str, Ending] = {
    "exit 0": (("true",), _let, (0, None)),
    "exit 1": (("false",), _let, (1, None)),
    "exit 7": (("sh", "-c", "exit 7"), _let, (7, None)),
    "SIGTERM": (("sleep", "60"), _kill(signal.SIGTERM), (None, 15)),
    "SIGKILL": (("sleep", "60"), _kill(signal.SIGKILL), (None, 9)),
    "import error": (("python3", "-c", "import no_such_module"), _let, (1, None)),
    "tmux killed": (("sh", "-c", "sleep 1; exit 3"), _kill_tmux, (3, None)),
}
# for a place with a memory limit of its own
_EATER = "hold = []\nwhile True: hold.append(b'x' * (1 << 20))"
OUT_OF_MEMORY: dict[str, Ending] = {"out of memory": (("python3", "-c", _EATER), _let, (None, 9))}


def ends_right(bench: Bench, name: str, ending: Ending) -> bool:
    """Whether one run's exit record is there and tells how it ended."""
    argv, fate, expected = ending
    run = bench.start(name, *argv)
    if run is None:
        return False
    fate(bench, run)
    record = bench.record(run)
    is_right = record is not None and [(one["exit_code"], one["signal"]) for one in record["attempts"]] == [expected]
    if not is_right:
        print(f"{name}: {argv} should end as {expected}, the record is {record}", file=sys.stderr)
    return is_right


def started_at_once(bench: Bench, count: int) -> tuple[int, int]:
    """How many of `count` starts of one name gave a run, and how many were refused as busy."""
    starts = [bench.popen("train", "start", "--name", "same", "--", "sleep", "600") for _ in range(count)]
    for start in starts:
        start.communicate(timeout=count * _PATIENCE_S)
    codes = [start.returncode for start in starts]
    bench.popen("train", "stop", "same", "--grace", "1").communicate(timeout=_PATIENCE_S)
    return codes.count(0), codes.count(BUSY)


@contextlib.contextmanager
def benches(over: str) -> Iterator[tuple[Bench, dict[str, Ending]]]:
    """The place that `over` names, and the endings that are tried there."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exit-records-")))
        if over == "local":
            yield Bench(folder, Place("none", python=sys.executable)), ENDINGS
            return
        server = stack.enter_context(running_sshd(folder / "sshd"))
        place = stack.enter_context(docker_place(memory=_MEMORY))
        yield Bench(folder, place, server.settings), ENDINGS | OUT_OF_MEMORY


def main() -> int:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--over", choices=("local", "ssh+docker"), default="local")
    parser.add_argument("--endings", type=int, default=200)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    print("expected: no exit record lost or wrong, and one run of all starts at once")
    began = time.monotonic()
    with benches(options.over) as (bench, endings):
        kinds = list(itertools.islice(itertools.cycle(endings), options.endings))
        wrong = [kind for number, kind in enumerate(kinds) if not ends_right(bench, f"e{number}", endings[kind])]
        runs, refused = started_at_once(bench, options.starts)
    is_kept = not wrong and (runs, refused) == (min(1, options.starts), max(0, options.starts - 1))
    print("| over | endings | lost or wrong | starts at once | runs | refused | took | promise |")
    print("|---|---|---|---|---|---|---|---|")
    verdict, took = "kept" if is_kept else f"BROKEN {wrong}", f"{time.monotonic() - began:.0f} s"
    row = (options.over, options.endings, len(wrong), options.starts, runs, refused, took, verdict)
    print(f"| {' | '.join(map(str, row))} |")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
