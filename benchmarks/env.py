"""What an environment costs beside bare tools, on the real cpu set: no-op rebuild, full rebuild, full verification.

Usage: python benchmarks/env.py [--tries N] [--kills N] [--only WHAT]. Prints one table; exits 1 on a broken promise.
The first build fills uv's cache and the kept bytecode; every row after it is measured with both warm, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests' small wheels serve the kills

from opsctl.ops.tools import local_uv  # noqa: E402 - after the path
from tests.support.runs import processes_with  # noqa: E402 - after the path
from tests.support.until import until  # noqa: E402 - after the path
from tests.support.wheels import build_wheel  # noqa: E402 - after the path

ROWS = ("no-op", "verify", "uv", "pip")
PATIENCE_S = 120.0
NO_OP_LIMIT_S, REBUILD_LIMIT = 1.0, 1.5
EXPECTED = """\
Expected before the first measurement: no-op rebuild 0.8 s, half of it Python starting twice; full rebuild 1.7 x uv on
two cores, where uv copies with one thread and we copy and hash with both, and five starts of Python, the bytecode and
the imports of the proof come on top; 0.3 x pip, which unpacks and compiles; verify --full 1.3 x sha256sum on all cores;
0 environments torn by kills.
"""
COMMAND = str(Path(sys.executable).with_name("opsctl"))
LOCK = ROOT / "env" / "cpu.lock"


@dataclass(frozen=True)
class Row:
    """A measured action beside a reference (None: seconds count), and what was promised of the ratio."""

    name: str
    measured: Callable[[], None]
    reference: Callable[[], None] | None
    limit: float | None = None
    tries: int | None = None


def run(*argv: str | Path, folder: Path) -> str:
    """The stdout of a command that must succeed."""
    done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Bench:
    """One project and home, used by all rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.bare = folder / "bare"
        self.linked = folder / "linked"
        target = {"home": str(self.home), "python": sys.executable}
        settings = {"default_target": "t", "targets": {"t": target}, "env": {"name": "cpu", "dir": str(ROOT / "env")}}
        (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML

    def rebuild(self) -> None:
        """Whatever `env rebuild` has to do."""
        run(COMMAND, "env", "rebuild", folder=self.folder)

    def pollute(self) -> None:
        """Edit the active environment, and remove every other; uv's cache and the bytecode stay."""
        active = (self.home / "envs" / "active").resolve()
        for other in (self.home / "envs").glob("*-*"):
            if other != active:
                self._put_aside(other)
        with next(active.glob("lib/*/site-packages/tqdm/version.py")).open("a") as file:
            file.write("\n")

    @property
    def python(self) -> Path:
        """The interpreter that the environment was built with."""
        return (self.home / "envs" / "active" / "bin" / "python").resolve()

    def _put_aside(self, folder: Path) -> None:
        """Take the folder away unremoved: ext4 makes new files slowly for a minute after many were removed."""
        aside = self.folder / "aside"
        aside.mkdir(exist_ok=True)
        folder.rename(aside / f"{time.monotonic_ns()}")

    def fresh_bare(self, python: Path) -> None:
        """An empty environment for the bare tools."""
        if self.bare.exists():
            self._put_aside(self.bare)
        run(local_uv().path, "venv", "--quiet", "--python", python, self.bare, folder=self.folder)

    def uv_sync(self) -> None:
        """The same files by uv alone."""
        self._sync(self.bare, "copy")

    def _sync(self, environment: Path, link_mode: str) -> None:
        words = ("pip", "sync", "--quiet", "--require-hashes", "--link-mode", link_mode, "--torch-backend", "cpu")
        options = words if not os.environ.get("UV_FIND_LINKS") else words[:-2]
        run(local_uv().path, *options, "--python", environment / "bin/python", LOCK, folder=self.folder)

    def warm(self) -> None:
        """Read uv's cache of the set, and the kept bytecode, into memory: else the first to come waits for the disk."""
        if not self.linked.exists():
            run(local_uv().path, "venv", "--quiet", "--python", self.python, self.linked, folder=self.folder)
            self._sync(self.linked, "symlink")
        for folder in (self.linked, self.home / "cache" / "bytecode"):
            for path in folder.rglob("*"):
                if path.is_file():
                    path.read_bytes()

    def pip_install(self) -> None:
        """The same files by pip, from wheels on the disk."""
        words = ("-m", "pip", "--quiet", "--python", self.bare / "bin/python", "install", "--no-deps", "--no-index")
        run(sys.executable, *words, "--find-links", self.folder / "house", "-r", LOCK, folder=self.folder)

    def verify_full(self) -> None:
        """Every hash of the environment, and everything else that verification looks at."""
        run(COMMAND, "env", "verify", "--full", folder=self.folder)

    def sha256sum(self) -> None:
        """The hashes alone, on all cores."""
        active = (self.home / "envs" / "active").resolve()
        script = "find . -type f -not -path '*/__pycache__/*' -print0 | xargs -0 -n 200 -P \"$(nproc)\" sha256sum"
        run("sh", "-c", script, folder=active)


def measure(row: Row, tries: int, prepare: Callable[[], None]) -> tuple[float, float]:
    """The median seconds of both, taken in turns so that other load meets both; the reference may be missing."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(row.tries or tries):
        for action, found in zip((row.measured, row.reference), times, strict=True):
            if action is not None:
                prepare()
                os.sync()  # what others left to write is not this one's time
                start = time.monotonic()
                action()
                found.append(time.monotonic() - start)
    return statistics.median(times[0]), statistics.median(times[1] or [0.0])


def rows(bench: Bench, chosen: set[str]) -> Iterator[tuple[Row, Callable[[], None]]]:
    """What is compared, each with what is done before every try."""
    python = bench.python

    def nothing() -> None:
        """Leave all as it is."""

    def anew() -> None:
        bench.pollute()
        bench.fresh_bare(python)
        bench.warm()

    if "no-op" in chosen:
        yield Row("no-op rebuild", bench.rebuild, None, NO_OP_LIMIT_S, tries=5), nothing
    if "verify" in chosen:
        yield Row("verify --full : sha256sum", bench.verify_full, bench.sha256sum, tries=3), nothing
    if "uv" in chosen:
        yield Row("full rebuild : uv pip sync --link-mode copy", bench.rebuild, bench.uv_sync, REBUILD_LIMIT), anew
    if "pip" in chosen:
        run(COMMAND, "env", "fetch", bench.folder / "house", folder=bench.folder)
        yield Row("full rebuild : pip install -r", bench.rebuild, bench.pip_install, tries=1), anew


def show(row: Row, took_s: float, reference_s: float) -> bool:
    """Print a row; whether its promise is kept."""
    value = took_s / reference_s if row.reference else took_s
    kept = row.limit is None or value <= row.limit
    unit = "x" if row.reference else "s"
    verdict = "" if row.limit is None else f"<= {row.limit} {unit}: {'kept' if kept else 'BROKEN'}"
    print(f"{row.name:46} {took_s:7.2f} {reference_s or float('nan'):7.2f} {value:6.2f} {unit}  {verdict}", flush=True)
    return kept


# --- kills -----------------------------------------------------------------------------------------


class Kills:
    """Rebuilds of a small set that are killed at random points, in turn between two locks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.lock = folder / "env" / "small.lock"
        self.build_s = 0.0
        self.lock.parent.mkdir(parents=True)
        files = {f"alpha/m{number}.py": f"X = {number}\n".encode() for number in range(400)}
        build_wheel(folder / "wheels", "alpha", "1.0", files=files)
        for version in ("1.0", "2.0"):
            build_wheel(folder / "wheels", "beta", version)
        env = {"name": "small", "find_links": [str(folder / "wheels")], "index_url": folder.as_uri()}
        target = {"home": str(self.home), "python": sys.executable}
        settings = {"default_target": "t", "targets": {"t": target}, "env": env}
        (folder / "opsctl.yaml").write_text(json.dumps(settings))

    def want(self, version: str) -> None:
        """Lock alpha and this version of beta."""
        rows = [f"# opsctl: python = {sys.version_info[0]}.{sys.version_info[1]}"]
        for name, pinned in (("alpha", "1.0"), ("beta", version)):
            wheel = self.folder / "wheels" / f"{name}-{pinned}-py3-none-any.whl"
            rows.append(f"{name}=={pinned} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
        self.lock.write_text("\n".join([*rows, ""]))

    def whole(self) -> str:
        """The version of beta that is active, "" for a torn environment."""
        argv = (COMMAND, "env", "verify", "--full", "--json")
        found = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        site = (self.home / "envs" / "active").resolve() / "lib"
        versions = [path.stem.split("-")[1] for path in site.glob("*/site-packages/beta-*.dist-info")]
        is_clean = found.returncode == 0 and json.loads(found.stdout)["is_clean"]
        return versions[0] if is_clean and len(versions) == 1 else ""

    def kill_one(self, victim: str, share: float) -> str:
        """Start a rebuild, SIGKILL its client, its uv or all of its job after this share of it; the phase it met."""
        known = set(self.home.glob("runs/*"))
        nowhere = subprocess.DEVNULL
        client = subprocess.Popen((COMMAND, "env", "rebuild"), cwd=self.folder, stdout=nowhere, stderr=nowhere)

        def begun() -> list[Path]:
            new = [path for path in self.home.glob("runs/*/metrics.jsonl") if path.parent not in known]
            if not new and client.poll() is not None:
                raise SystemExit(f"a rebuild ended with {client.returncode} before it began")
            return new

        (metrics,) = until(begun, PATIENCE_S, period_s=0.01)
        threading.Event().wait(share * self.build_s)  # any point will do
        if victim == "client":
            client.kill()
        for pid in processes_with(f"OPSCTL_RUN_ID={metrics.parent.name}"):
            with contextlib.suppress(OSError):  # ended meanwhile
                is_uv = b"/uv-" in Path(f"/proc/{pid}/cmdline").read_bytes()
                if victim == "job" or (victim == "uv" and is_uv):
                    os.kill(pid, signal.SIGKILL)
        client.wait(PATIENCE_S)
        until((metrics.parent / "exit.json").exists, PATIENCE_S)
        rows = metrics.read_text().splitlines()
        return str(json.loads(rows[-1])["phase"]) if rows else "start"

    def build(self) -> None:
        """Build what is wanted, and remember how long that takes on this machine now."""
        found = json.loads(run(COMMAND, "env", "rebuild", "--json", folder=self.folder))
        self.build_s = float(found["outcome"]["seconds"])


def kills(folder: Path, num_kills: int) -> int:
    """How many of the kills left something torn; prints what they met."""
    small = Kills(folder)
    for version in ("1.0", "2.0"):
        small.want(version)
        small.build()
    chance, torn, old = random.Random(), 0, 0
    met: list[str] = []
    for number in range(num_kills):
        for path in (small.home / "envs").glob("*-*"):
            if path != (small.home / "envs/active").resolve():
                shutil.rmtree(path)  # so that each rebuild has to build
        before = small.whole()
        small.want("1.0" if before == "2.0" else "2.0")
        met.append(small.kill_one(("job", "uv", "client")[number % 3], chance.uniform(0.0, 1.1)))
        after = small.whole()
        torn += not after
        old += after == before
    new = num_kills - old - torn
    print(f"{num_kills} kills of job, uv and client: {torn} torn, {old} left the old one active, {new} the new one")
    print("last phases: " + ", ".join(f"{phase} {met.count(phase)}" for phase in dict.fromkeys(met)))
    return torn


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=("kills", *ROWS), action="append")
    options = parser.parse_args()
    chosen = set(options.only or ("kills", *ROWS))
    print(EXPECTED)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed software has its bytecode
    with tempfile.TemporaryDirectory(prefix="env-benchmark-") as name:
        is_kept = kills(Path(name) / "kills", options.kills) == 0 if "kills" in chosen else True
        if not chosen & set(ROWS):
            return 0 if is_kept else 1
        bench = Bench(Path(name))
        start = time.monotonic()
        bench.rebuild()
        print(f"first build, with uv's cache as it was and no bytecode kept: {time.monotonic() - start:.1f} s")
        print(f"{'what':46} {'took s':>7} {'ref s':>7} {'ratio':>8}  promise")
        for row, prepare in rows(bench, chosen):
            is_kept = show(row, *measure(row, options.tries, prepare)) and is_kept
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
