"""A project with a small pinned set of wheels made on the spot, and the commands that build and check it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.ops.tools import local_uv
from tests.support.runs import Runs
from tests.support.wheels import build_wheel

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
OPTIONS = f"# opsctl: python = {PYTHON}\n"


class Envs:
    """The environments of one test."""

    def __init__(self, opsctl: Callable[..., Any], project: Path, home: Path, wheels: Path, uv_cache: Path) -> None:
        self.opsctl = opsctl
        self.project = project
        self.home = home
        self.wheels = wheels
        self.uv_cache = uv_cache

    def configure(self, *, find_links: tuple[str, ...] | None = None, **sections: Any) -> None:
        """Write opsctl.yaml; JSON is YAML."""
        settings = {
            "default_target": "here",
            "targets": {"here": {"home": str(self.home), "python": sys.executable}},
            "env": {"name": "tiny", "find_links": [str(self.wheels)] if find_links is None else list(find_links)},
            **sections,
        }
        (self.project / "opsctl.yaml").write_text(json.dumps(settings))

    def place_uv(self) -> None:
        """Put uv where a rebuild would bring it: 40 MB that not every test has to send."""
        local = local_uv()
        path = self.home / "tools" / local.tool.name
        path.parent.mkdir(parents=True)
        path.symlink_to(local.path)

    def wheel(self, name: str, version: str = "1.0", **content: Any) -> Path:
        """Offer a wheel."""
        return build_wheel(self.wheels, name, version, **content)

    def wants(self, *rows: str) -> None:
        """Write the set; it is not locked by that."""
        self.lock.parent.mkdir(exist_ok=True)
        self.lock.with_suffix(".in").write_text(OPTIONS + "\n".join(rows) + "\n")

    def pins(self, *pins: str) -> None:
        """Write the lock as `env lock` would, for the wheels offered: quicker than the command."""
        rows = []
        for pin in pins:
            name, _, version = pin.partition("==")
            wheel = self.wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
            rows.append(f"{pin} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
        direct = "# opsctl: direct = tiny-a\n"
        self.lock.write_text(OPTIONS + direct + "\n".join(rows) + "\n")

    @property
    def lock(self) -> Path:
        """The lock of the set."""
        return self.project / "env" / "tiny.lock"

    def rebuild(self, *words: str, **variables: str) -> dict[str, Any]:
        """Rebuild; what --json says."""
        found: dict[str, Any] = self.opsctl("env", "rebuild", "--json", *words, **variables).ok().json()
        return found

    def verify(self, *words: str) -> list[dict[str, str]]:
        """The drifts that verify names, and that its exit code agrees."""
        ended = self.opsctl("env", "verify", "--json", *words)
        found: dict[str, Any] = ended.json()
        assert ended.code == (0 if found["is_clean"] else 1)
        drifts: list[dict[str, str]] = found["check"]["drifts"]
        return drifts

    @property
    def active(self) -> Path:
        """The active environment's folder."""
        return (self.home / "envs" / "active").resolve()

    @property
    def site_packages(self) -> Path:
        """Where the active environment's distributions lie."""
        return self.active / "lib" / f"python{PYTHON}" / "site-packages"

    def standing(self) -> list[str]:
        """What lies in the environments' folder, the link apart."""
        return sorted(path.name for path in (self.home / "envs").iterdir() if not path.is_symlink())


@pytest.fixture
def envs(opsctl: Callable[..., Any], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Envs]:
    """A configured project with the set `tiny` of two wheels, locked; uv's cache is the test's own."""
    for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    found = Envs(opsctl, project, tmp_path / "target", tmp_path / "wheels", tmp_path / "uv")
    found.place_uv()
    found.configure()
    found.wheel("tiny-a", requires=("tiny-b",))
    found.wheel("tiny-b")
    found.wants("tiny-a==1.0")
    found.pins("tiny-a==1.0", "tiny-b==1.0")
    yield found
    Runs(opsctl, project, found.home).end_all()
