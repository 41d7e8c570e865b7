"""Where an environment keeps its files, and which ones stand. Reads only, except `flip`."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.addresses import meant
from opsctl.agent.files import fsync_folder, read_record
from opsctl.agent.home import Home
from opsctl.errors import CheckFailed, UsageError
from opsctl.records.env import EnvRecord

# files of ours at the top of an environment, and uv's own lock; they are no part of what is verified
OWN_FILES = frozenset({"env.json", "manifest.json", "requirements.lock", "exact.txt", "cache-key.json", ".lock"})


REMOVED = ".removed-"  # begins the name of an environment that is being deleted


@dataclass(frozen=True)
class EnvPaths:
    """The files of one environment."""

    root: Path

    @property
    def env_id(self) -> str:
        return self.root.name

    @property
    def record(self) -> Path:
        return self.root / "env.json"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def lock(self) -> Path:
        return self.root / "requirements.lock"

    @property
    def exact(self) -> Path:
        """The lock as the installer reads it; there only while a build lasts."""
        return self.root / "exact.txt"

    @property
    def cache_key(self) -> Path:
        return self.root / "cache-key.json"

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    def site_packages(self) -> Path:
        """The one folder that distributions are installed into."""
        found = sorted((self.root / "lib").glob("python3*/site-packages"))
        if len(found) != 1:
            raise CheckFailed(f"{self.root} has {len(found)} site-packages folders instead of one")
        return found[0]


def read_env(root: Path) -> EnvRecord | None:
    """What the environment at `root` was built from, or None where no build was completed or it cannot be read."""
    with contextlib.suppress(ValueError, TypeError):  # somebody edited it: as good as none
        return read_record(EnvRecord, root / "env.json")
    return None


def standing(home: Home) -> Iterator[tuple[EnvPaths, EnvRecord]]:
    """The complete environments, oldest first."""
    found = []
    for root in home.envs.iterdir() if home.envs.is_dir() else ():
        if root.is_symlink() or root.name.startswith("."):
            continue
        record = read_env(root)
        if record is not None:
            found.append((EnvPaths(root), record))
    yield from sorted(found, key=lambda pair: pair[1].created)


def unfinished(home: Home) -> Iterator[Path]:
    """What killed builds left; only the holder of the environments' lock may ask.

    The active one is none of it, even if somebody removed its record: runs may live in it.
    """
    for root in sorted(home.envs.iterdir()):
        is_built = (root / "env.json").exists() and not root.name.startswith(REMOVED)
        is_complete = is_built or is_active_name(home, root.name)
        if not root.is_symlink() and root.is_dir() and not is_complete:
            yield root


def active(home: Home) -> EnvPaths | None:
    """The active environment by its real path, or None."""
    try:
        name = home.active_env.readlink()
    except OSError:
        return None
    root = home.envs / name
    return EnvPaths(root) if root.is_dir() else None


def is_active_name(home: Home, env_id: str) -> bool:
    """Whether the active link names this environment, be it there or not."""
    return home.active_env.is_symlink() and home.active_env.readlink() == Path(env_id)


def find(home: Home, env_id: str = "") -> EnvPaths:
    """The environment of this id, or of a unique beginning of it; "" is the active one."""
    if not env_id:
        found = active(home)
        if found is None:
            raise CheckFailed(
                "no environment is active on the target",
                hint="`opsctl env rebuild` builds one; a command after `train start --` needs none",
            )
        return found
    known = [paths.env_id for paths, _ in standing(home)]
    if name := meant(env_id, known, noun="environments"):
        return EnvPaths(home.envs / name)
    near = difflib.get_close_matches(env_id, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`opsctl env list` shows what stands"
    raise UsageError(f"no environment {env_id!r} on the target", hint=hint)


def flip(home: Home, paths: EnvPaths) -> None:
    """Make this environment the active one, by one rename."""
    part = home.envs / f".active.{os.getpid()}.part"
    with contextlib.suppress(FileNotFoundError):  # nothing is in the way
        part.unlink()
    part.symlink_to(paths.env_id)
    part.replace(home.active_env)
    fsync_folder(home.envs)
