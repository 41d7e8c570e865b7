"""Pinned sets in the project's folder: NAME.in and NAME.lock. Reads only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.config import EnvConfig, nearest
from opsctl.config_file import read
from opsctl.errors import ConfigError
from opsctl.formats.drivers import AUTO
from opsctl.formats.sources import with_environment
from opsctl.ops.workspace import Workspace
from opsctl.records.env import Sources

_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


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
            return read(self.wanted)
        raise ConfigError(f"no set {self.name!r}: {self.wanted} is not there", hint=self._way_on("*.in"))

    def lock_text(self) -> str:
        """What NAME.lock says; raises ConfigError naming the command that writes it, or the nearest set."""
        if self.lock.is_file():
            return read(self.lock)
        if self.wanted.is_file():
            raise ConfigError(f"{self.lock} is not there", hint=f"`opsctl env lock {self.name}` writes it")
        raise ConfigError(f"no set {self.name!r}: {self.lock} is not there", hint=self._way_on("*.lock", "*.in"))

    def _way_on(self, *kinds: str) -> str:
        known = sorted({path.stem for kind in kinds for path in self.folder.glob(kind)})
        return nearest(self.name, known) if known else first_set(self.folder.name, self.name)


def first_set(folder: str, name: str) -> str:
    """How a project without any set gets one."""
    wanted = f"{folder}/{name}.in"
    return f"write {wanted}, a row `# opsctl: python = 3.11`, then a requirement a row; then `opsctl env lock {name}`"


def pinned_set(workspace: Workspace, name: str | None) -> PinnedSet:
    """The set of this name, or the configured one; its files may be missing."""
    settings = workspace.config.env
    chosen = name or settings.name
    if chosen == AUTO:
        known = ", ".join(path.stem for path in sorted((workspace.folder / settings.dir).glob("*.in")))
        raise ConfigError(
            "env.name is auto: the driver chooses the set, and only `env rebuild` asks it",
            hint=f"name one of: {known}" if known else first_set(settings.dir, "NAME"),
        )
    return PinnedSet(chosen, workspace.folder / settings.dir)


def candidates(workspace: Workspace, name: str | None) -> tuple[PinnedSet, ...]:
    """The sets that a rebuild may take: one, or for `auto` all that are locked; raises ConfigError for none."""
    settings = workspace.config.env
    if (name or settings.name) != AUTO:
        return (pinned_set(workspace, name),)
    folder = workspace.folder / settings.dir
    found = tuple(PinnedSet(path.stem, folder) for path in sorted(folder.glob("*.lock")))
    if not found:
        wanted = any(folder.glob("*.in"))
        hint = "`opsctl env lock NAME` writes NAME.lock" if wanted else first_set(settings.dir, "NAME")
        raise ConfigError(f"no set is locked in {folder}", hint=hint)
    return found


def what_is_missing(workspace: Workspace) -> str:
    """What to do before `env rebuild` can build the configured set; "" where it is locked."""
    try:
        for one in candidates(workspace, None):
            one.lock_text()
    except ConfigError as error:
        return error.hint
    return ""


def sha256_of(text: str) -> str:
    """What a lock remembers of the set that it was made from."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]


def filled(address: str | None, environment: Mapping[str, str], *, key: str) -> str:
    """The address with each ${NAME} replaced by that variable, so that no password need stand in the file.

    >>> filled("https://${USER}@host", {"USER": "ana"}, key="env.proxy")
    'https://ana@host'
    """

    def value(match: re.Match[str]) -> str:
        if match["name"] not in environment:
            raise ConfigError(
                f"{key} refers to the environment variable {match['name']}, which is not set here",
                hint=f"export {match['name']} first, or take it out of {key}",
            )
        return environment[match["name"]]

    return _REFERENCE.sub(value, address or "")


def configured_sources(settings: EnvConfig, folder: Path, environment: Mapping[str, str]) -> Sources:
    """Where files come from as opsctl.yaml says; relative folders start at `folder`."""

    def address(name: str, text: str | None) -> str:
        return filled(text, environment, key=f"env.{name}")

    links = (address("find_links", link) for link in settings.find_links)
    return Sources(
        index_url=address("index_url", settings.index_url),
        extra_index_urls=tuple(address("extra_index_urls", url) for url in settings.extra_index_urls),
        find_links=tuple(link if "://" in link else str(folder / Path(link).expanduser()) for link in links),
        ca_bundle=str(folder / Path(settings.ca_bundle).expanduser()) if settings.ca_bundle else "",
        proxy=address("proxy", settings.proxy),
        no_proxy=",".join(settings.no_proxy),
        python_mirror=address("python_mirror", settings.python_mirror),
    )


def configured(workspace: Workspace, environment: Mapping[str, str]) -> Sources:
    """Where files come from for what runs on this machine: as configured, else as uv's and pip's variables say."""
    return with_environment(configured_sources(workspace.config.env, workspace.folder, environment), dict(environment))
