"""Live caches: which folder a job's caches lie in, what lies there, and what is known to be warm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.agent.cache.key import CacheKey, key_of, key_without_env
from opsctl.agent.env.layout import active, find
from opsctl.agent.files import folder_mode, write_record
from opsctl.agent.home import Home
from opsctl.errors import CheckFailed, TimedOut
from opsctl.records.cache import Warmed
from opsctl.records.call import from_json

# files of ours at the top of a live cache; they are no part of its content
OWN_FILES = frozenset({"key.json", "warmed.json", "snapshot.json"})
_LOCK_SUFFIX = ".lock"  # torch's and Triton's own; empty, and of no use elsewhere

Listing = dict[str, tuple[int, int]]  # relative path -> size, modification time in ns


@dataclass(frozen=True)
class LivePaths:
    """The files of one live cache."""

    root: Path

    @property
    def key(self) -> Path:
        return self.root / "key.json"

    @property
    def warmed(self) -> Path:
        return self.root / "warmed.json"

    @property
    def last_snapshot(self) -> Path:
        return self.root / "snapshot.json"


def live_of(home: Home, key: CacheKey) -> LivePaths:
    """Where caches of this key lie; there may be nothing yet."""
    return LivePaths(home.live_caches / key.digest)


def key_for(home: Home, *, env: str = "", uses_env: bool = True) -> CacheKey:
    """The key of jobs in the environment of this id ("" = the active one), or of jobs without one."""
    return key_of(find(home, Path(env).name)) if uses_env else key_without_env()


def current_key(home: Home) -> CacheKey | None:
    """The key of the active environment, None where none is active or it does not answer."""
    paths = active(home)
    try:
        return key_of(paths) if paths else None
    except (CheckFailed, TimedOut):  # a broken environment has no key; `env verify` says what is wrong with it
        return None


def ensure_live(home: Home, key: CacheKey) -> LivePaths:
    """Make the live cache's folder, and say in it what its key is."""
    live = live_of(home, key)
    live.root.mkdir(mode=folder_mode(home.live_caches), parents=True, exist_ok=True)
    if not live.key.is_file():
        write_record(live.key, key.fields)
    return live


def listing(root: Path) -> Listing:
    """The cache's files; a file that goes away while we look is left out, like links and locks."""
    found: Listing = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        for path, entry in _entries(root, folder):
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
            elif entry.is_file(follow_symlinks=False) and not path.endswith(_LOCK_SUFFIX) and path not in OWN_FILES:
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found[path] = (stat.st_size, stat.st_mtime_ns)
    return found


def _entries(root: Path, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(root / folder) as entries:
            yield from ((f"{folder}/{entry.name}" if folder else entry.name, entry) for entry in entries)
    except FileNotFoundError:  # a compile's own temporary folder, gone again
        return


def listing_digest(files: Listing) -> str:
    """One value for a whole listing: equal only if no file came, went or was written."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def content_digest(hashes: dict[str, str]) -> str:
    """One value for a content: names and hashes, whenever they were written."""
    return hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file, {} where there is none."""
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def read_key(live: LivePaths) -> CacheKey:
    """The key that a live cache says it has; one without fields where it says none."""
    return CacheKey({name: str(value) for name, value in read_json(live.key).items()})


def all_lives(home: Home) -> list[LivePaths]:
    """Every live cache, and what restores put aside."""
    roots = sorted(home.live_caches.iterdir()) if home.live_caches.is_dir() else []
    return [LivePaths(root) for root in roots if root.is_dir() and not root.name.startswith(".")]


def read_warmed(live: LivePaths) -> dict[str, Warmed]:
    """What each job's last prewarm left here."""
    return {job: from_json(Warmed, one) for job, one in read_json(live.warmed).items()}


def remember_warmed(live: LivePaths, warmed: Warmed) -> None:
    """Keep what a prewarm left; the other jobs' stay."""
    write_record(live.warmed, {**read_json(live.warmed), warmed.job: warmed})
