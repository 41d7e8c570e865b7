"""Pinned sets in the project's folder: NAME.in and NAME.lock. Reads only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from opsctl.config import EnvConfig, nearest
from opsctl.errors import ConfigError
from opsctl.ops.workspace import Workspace
from opsctl.records.env import Sources


@dataclass(frozen=True)
class PinnedSet:
    """The two files of one set."""

    name: str
    folder: Path

    @property
    def wanted(self) -> Path:
        return self.folder / f"{self.name}.in"

    @property
    def lock(self) -> Path:
        return self.folder / f"{self.name}.lock"

    def wanted_text(self) -> str:
        """What NAME.in says; raises ConfigError naming the sets that are there."""
        if self.wanted.is_file():
            return self.wanted.read_text()
        known = [path.stem for path in sorted(self.folder.glob("*.in"))]
        raise ConfigError(f"no set {self.name!r}: {self.wanted} is not there", hint=nearest(self.name, known))

    def lock_text(self) -> str:
        """What NAME.lock says; raises ConfigError naming the command that writes it, or the nearest set."""
        if self.lock.is_file():
            return self.lock.read_text()
        if self.wanted.is_file():
            raise ConfigError(f"{self.lock} is not there", hint=f"`opsctl env lock {self.name}` writes it")
        known = [path.stem for path in sorted(self.folder.glob("*.lock"))]
        raise ConfigError(f"no set {self.name!r}: {self.lock} is not there", hint=nearest(self.name, known))


def pinned_set(workspace: Workspace, name: str | None) -> PinnedSet:
    """The set of this name, or the configured one; its files may be missing."""
    settings = workspace.config.env
    return PinnedSet(name or settings.name, workspace.folder / settings.dir)


def sha256_of(text: str) -> str:
    """What a lock remembers of the set that it was made from."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def configured_sources(settings: EnvConfig, folder: Path) -> Sources:
    """Where files come from as opsctl.yaml says; relative folders start at `folder`."""
    links = tuple(link if "://" in link else str(folder / Path(link).expanduser()) for link in settings.find_links)
    return Sources(
        index_url=settings.index_url or "",
        extra_index_urls=settings.extra_index_urls,
        find_links=links,
        ca_bundle=settings.ca_bundle or "",
    )
