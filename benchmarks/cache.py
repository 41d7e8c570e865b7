"""What a compile cache is worth, and what keeping it costs: cold and warm starts, snapshots, restores, damage.

Usage: python benchmarks/cache.py [--recipe FILE] [--size-mib N] [--image IMAGE] [--only PART]. With --image,
starts are measured in two containers of that image (which needs g++ and tmux); else in two homes on this machine.
Prints one table; exits 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = str(Path(sys.executable).with_name("opsctl"))
WARM_LIMIT = 0.2  # of a cold start
SAME_LIMIT = 1.25  # "as quick as in place", with a busy machine's noise
WARM_TRIES = 3
UNCHANGED_LIMIT_S = 1.5  # a whole command, most of it the start of Python
EXPECTED = f"""expected: a warm start at most {WARM_LIMIT} x a cold one; after a restore into an empty folder, and
after a move to another place, at most {SAME_LIMIT} x the warm start in place; a snapshot about 2 x `tar --zstd` (it
copies and hashes too), a restore about 2 x `tar -x` (it checks archive and files); an unchanged cache saved again
within {UNCHANGED_LIMIT_S} s and 0 bytes; corrupted, truncated and foreign snapshots refused with a clear error, the
old cache whole"""
FILL = """
import os, pathlib, random, sysconfig
size, folder = int(os.environ["FILL_MIB"]) << 20, pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(parents=True)
code = b"".join(path.read_bytes() for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.so"))[:80])
number = 0
while size > 0:
    start = random.Random(number).randrange(len(code) // 2)
    data = code[start : start + 60_000 + 1000 * (number % 400)]
    (folder / f"{number}.so").write_bytes(data)
    size, number = size - len(data), number + 1
"""


@dataclass
class Table:
    """The rows so far, and whether every promise was kept."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    is_kept: bool = True

    def add(self, what: str, found: str, promise: bool | None = None) -> None:
        """One row; None for a figure that nothing is promised about."""
        self.rows.append((what, found, {True: "kept", False: "BROKEN", None: ""}[promise]))
        self.is_kept = self.is_kept and promise is not False
        print(f"  {what}: {found}", flush=True)

    def show(self) -> None:
        """Print it."""
        print("| measured | figure | promise |\n|---|---|---|")
        for row in self.rows:
            print(f"| {' | '.join(row)} |")


class Project:
    """A folder with a configuration, and the installed command run in it."""

    def __init__(self, folder: Path, targets: dict[str, Any], job: dict[str, Any]) -> None:
        self.folder = folder
        settings = {"default_target": "one", "targets": targets, "jobs": {"job": {"env": False, "code": False, **job}}}
        folder.mkdir()
        (folder / "opsctl.yaml").write_text(json.dumps(settings))  # JSON is YAML
        self._environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        argv = [COMMAND, *words]
        return subprocess.run(argv, cwd=self.folder, env=self._environment, capture_output=True, text=True)

    def ask(self, *words: str) -> Any:
        """What a command that succeeds says in JSON."""
        done = self.run(*words, "--json")
        if done.returncode != 0:
            raise SystemExit(f"opsctl {' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return json.loads(done.stdout)


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    started = time.monotonic()
    work()
    return time.monotonic() - started


# --- starts ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def container(image: str) -> Iterator[dict[str, Any]]:
    """A container that sees this Python and these sources under their own paths; its target's section."""
    name = f"opsctl-bench-{secrets.token_hex(4)}"
    folders = {str(ROOT), sys.prefix, sys.base_prefix}
    mounts = [word for folder in sorted(folders) for word in ("-v", f"{folder}:{folder}:ro")]
    subprocess.run(["docker", "run", "-d", "--init", "--name", name, *mounts, image], check=True, capture_output=True)
    try:
        yield {"container": {"docker": name}, "python": sys.executable}
    finally:
        subprocess.run(["docker", "rm", "-f", "-v", name], check=True, capture_output=True)


@contextlib.contextmanager
def two_places(folder: Path, image: str) -> Iterator[dict[str, Any]]:
    """Two targets of the same kind, that share nothing."""
    if image:
        with container(image) as one, container(image) as other:
            yield {"one": one, "other": other}
    else:
        yield {name: {"home": str(folder / name), "python": sys.executable} for name in ("one", "other")}


def starts(table: Table, folder: Path, recipe: Path, image: str) -> None:
    """Cold, warm in place, restored into an empty folder, moved to another place."""
    words = [sys.executable, "-m", "trainer", "prewarm", str(recipe), "--result", "result.json"]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with two_places(folder, image) as targets:
        project = Project(
            folder / "starts", targets, {"command": ["true"], "prewarm": words, "environment": environment}
        )
        cold = warmed(project)
        warm = best_warm(project)
        share = warm["report"]["seconds"] / cold["report"]["seconds"]
        table.add("cold start", figures(cold))
        table.add("warm start in place", figures(warm), is_warm(warm))
        table.add("warm against cold", f"{share:.3f}", share <= WARM_LIMIT)
        saved = project.ask("cache", "snapshot", "--job", "job")["snapshot"]
        table.add(
            "its snapshot", f"{saved['num_files']} files, {saved['size_mib']} MiB, archive {saved['archive_mib']} MiB"
        )
        empty(project, cold["cache_dir"])
        project.ask("cache", "restore", "--job", "job")
        compare(table, "restored into an empty folder", best_warm(project), warm)
        project.ask("cache", "pull", saved["snapshot_id"])
        project.ask("cache", "push", saved["snapshot_id"], "--trust", "-t", "other")
        project.ask("cache", "restore", "--job", "job", "-t", "other")
        compare(table, "moved to another place", best_warm(project, "-t", "other"), warm)


def warmed(project: Project, *words: str) -> Any:
    """A prewarm in a process of its own."""
    return project.ask("cache", "prewarm", *words)["warmed"]


def best_warm(project: Project, *words: str) -> Any:
    """The quickest of a few warm starts: other work on the machine only ever makes them slower."""
    found = [warmed(project, *words) for _ in range(WARM_TRIES)]
    print(f"    {[one['report']['seconds'] for one in found]} s", flush=True)
    cold = [one for one in found if not is_warm(one)]
    return cold[0] if cold else min(found, key=lambda one: float(one["report"]["seconds"]))


def is_warm(found: Any) -> bool:
    """Whether nothing was compiled."""
    return not (found["report"]["fx_misses"] or found["report"]["compiler_starts"] or found["num_new_files"])


def figures(found: Any) -> str:
    """One start in a few words."""
    report = found["report"]
    return f"{report['seconds']:.1f} s, {report['fx_misses']} misses, {report['compiler_starts']} compilers"


def compare(table: Table, what: str, found: Any, warm: Any) -> None:
    """A start that should be as quick as the warm one in place."""
    share = found["report"]["seconds"] / warm["report"]["seconds"]
    table.add(what, f"{figures(found)}: {share:.2f} x in place", is_warm(found) and share <= SAME_LIMIT)


def empty(project: Project, cache_dir: str) -> None:
    """Remove a live cache where it lies."""
    done = project.run("exec", "--", "rm", "-r", cache_dir)
    if done.returncode != 0:
        raise SystemExit(done.stderr)


# --- keeping --------------------------------------------------------------------------------------------


def keeping(table: Table, folder: Path, size_mib: int) -> None:
    """Snapshots and restores of a large cache beside plain tar, and what damage comes to."""
    target = {"home": str(folder / "large"), "python": sys.executable}
    job = {"command": ["true"], "prewarm": [sys.executable, "-c", FILL], "environment": {"FILL_MIB": str(size_mib)}}
    project = Project(folder / "keeping", {"one": target}, job)
    live = Path(warmed(project)["cache_dir"])
    snapshots = folder / "large" / "cache" / "snapshots"
    archive = folder / "plain.tar.zst"
    tar_s = timed(lambda: subprocess.run(["tar", "--zstd", "-cf", archive, "-C", live, "."], check=True))
    snapshot_s = timed(lambda: project.ask("cache", "snapshot", "--job", "job"))
    table.add(
        f"snapshot of {size_mib} MiB", f"{snapshot_s:.1f} s; `tar --zstd` {tar_s:.1f} s: {snapshot_s / tar_s:.1f} x"
    )
    before = size_of(snapshots)
    again_s = timed(lambda: project.ask("cache", "snapshot", "--job", "job"))
    grown = size_of(snapshots) - before
    is_instant = again_s <= UNCHANGED_LIMIT_S and grown == 0
    table.add("the same cache saved again", f"{again_s:.2f} s, {grown} bytes", is_instant)
    (live / "triton" / "new.so").write_bytes(b"new")
    changed_s = timed(lambda: project.ask("cache", "snapshot", "--job", "job"))
    table.add("one more file, saved again", f"{changed_s:.1f} s, {(size_of(snapshots) - before) / 2**20:.0f} MiB")
    (folder / "plain").mkdir()
    untar_s = timed(lambda: subprocess.run(["tar", "--zstd", "-xf", archive, "-C", folder / "plain"], check=True))
    shutil.rmtree(live)
    restore_s = timed(lambda: project.ask("cache", "restore", "--job", "job"))
    table.add("restore", f"{restore_s:.1f} s; `tar -x` {untar_s:.1f} s: {restore_s / untar_s:.1f} x")
    damage(table, project, live, snapshots)


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def damage(table: Table, project: Project, live: Path, snapshots: Path) -> None:
    """Every damaged or foreign snapshot is refused, and the live cache is as it was."""
    newest = project.ask("cache", "list")["snapshots"][0]
    archive, manifest = Path(newest["path"]), snapshots / f"{newest['snapshot_id']}.json"
    (live / "triton" / "unsaved.so").write_bytes(b"unsaved")
    before = {path: path.stat().st_mtime_ns for path in live.rglob("*")}
    good, said = archive.read_bytes(), manifest.read_text()
    middle = len(good) // 2
    foreign = said.replace('"created": ', '"created": 1')
    for what, data, text in (
        ("corrupted", good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], said),
        ("truncated", good[:middle], said),
        ("foreign", good, foreign),
        ("made for another machine", good, said.replace('"cpu_isa": "', '"cpu_isa": "other ')),
    ):
        archive.write_bytes(data)
        manifest.write_text(text)
        done = project.run("cache", "restore", newest["snapshot_id"], "--replace", "--job", "job")
        is_whole = before == {path: path.stat().st_mtime_ns for path in live.rglob("*")}
        error = next((row for row in done.stderr.splitlines() if row.startswith("error: ")), "no error")
        is_clear = done.returncode == 1 and newest["snapshot_id"] in error
        table.add(f"{what} snapshot", error.replace(str(snapshots), "..."), is_whole and is_clear)
    archive.write_bytes(good)
    manifest.write_text(said)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=ROOT / "configs" / "demo.yaml")
    parser.add_argument("--size-mib", type=int, default=350)
    parser.add_argument("--image", default="")
    parser.add_argument("--only", choices=("starts", "keeping"))
    wish = parser.parse_args()
    print(EXPECTED)
    table = Table()
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as name:
        if wish.only != "starts":
            keeping(table, Path(name), wish.size_mib)
        if wish.only != "keeping":
            starts(table, Path(name), wish.recipe.resolve(), wish.image)
    table.show()
    return 0 if table.is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
