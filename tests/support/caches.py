"""A project with a job whose prewarm writes into compile caches, and the commands that keep those."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Runs

# "compiles" what is not there yet, as torch and Triton do: by files in the two folders that the environment names
COMPILE = """
import json, os, pathlib, sys
made = 0
for name, size in (("TORCHINDUCTOR_CACHE_DIR", 90_000), ("TRITON_CACHE_DIR", 10)):
    path = pathlib.Path(os.environ[name]) / "ab" / "kernel.so"
    if not path.exists():
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(size))
        made += 1
result = {"warm": made == 0, "fx_misses": made, "compiler_starts": made}
pathlib.Path("result.json").write_text(json.dumps(result))
"""


class Caches:
    """The caches of one test."""

    def __init__(self, opsctl: Callable[..., Any], project: Path, home: Path) -> None:
        self.opsctl = opsctl
        self.project = project
        self.home = home
        self.live = home / "cache" / "live"
        self.snapshots = home / "cache" / "snapshots"
        self.other_home = home.with_name("other")

    def configure(self, **jobs: Any) -> None:
        """Write opsctl.yaml with these jobs, none of which needs an environment."""
        settings = {
            "default_target": "here",
            "targets": {
                "here": {"home": str(self.home), "python": sys.executable},
                "there": {"home": str(self.other_home), "python": sys.executable},
            },
            "jobs": {name: {"env": False, "code": False, **job} for name, job in jobs.items()},
        }
        (self.project / "opsctl.yaml").write_text(json.dumps(settings))

    def prewarm(self) -> dict[str, Any]:
        """Prewarm; what --json says of it."""
        found: dict[str, Any] = self.opsctl("cache", "prewarm", "--json", timeout_s=280).ok().json()["warmed"]
        return found

    def snapshot(self) -> dict[str, Any]:
        """Save; what --json says of it."""
        found: dict[str, Any] = self.opsctl("cache", "snapshot", "--job", "small", "--json").ok().json()
        return found

    def restore(self, *words: str) -> Any:
        """Bring back."""
        return self.opsctl("cache", "restore", *words, "--job", "small")

    def folder(self) -> Path:
        """The one live cache."""
        (found,) = [path for path in self.live.iterdir() if ".replaced-" not in path.name]
        return found

    def files(self) -> dict[str, bytes]:
        """What the live cache holds, our own files apart."""
        root = self.folder()
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.so")}


@pytest.fixture
def caches(opsctl: Callable[..., Any], project: Path, tmp_path: Path) -> Iterator[Caches]:
    """A configured target and a job whose prewarm writes into its caches."""
    found = Caches(opsctl, project, tmp_path / "target")
    found.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", COMPILE]})
    yield found
    for home in (found.home, found.other_home):
        Runs(opsctl, project, home).end_all()
