"""The manifest: every file of an environment with size, time and sha256, by distribution.

Bytecode in `__pycache__` is left out: Python may write it again at any time from the same source.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opsctl.agent.env.layout import OWN_FILES

VENV = "(virtual environment)"  # owns what is there before anything is installed
_SCHEMA = 1


class Seen(NamedTuple):  # a tuple, as there are tens of thousands: a frozen dataclass takes five times as long to make
    """One file as a listing shows it; `link` is a symbolic link's text."""

    size: int
    mtime_ns: int
    link: str | None = None
    num_names: int = 1  # hard links


class Entry(NamedTuple):
    """One file as it was built; a link has no digest."""

    size: int
    mtime_ns: int
    sha256: str
    link: str | None = None


@dataclass(frozen=True)
class Listing:
    """What lies in an environment's folder, by path relative to it."""

    files: dict[str, Seen]
    bytecode: tuple[str, ...]  # paths below a __pycache__, not looked at closer


Manifest = dict[str, dict[str, Entry]]  # distribution ("name==version" or VENV) -> path -> entry


def listing(root: Path) -> Listing:
    """All files of the environment at `root` but our own; links are not followed."""
    files: dict[str, Seen] = {}
    bytecode: list[str] = []
    base = f"{root}/"
    pending = [""]
    while pending:
        folder = pending.pop()
        prefix = f"{folder}/" if folder else ""
        is_bytecode = folder.endswith("__pycache__")
        with os.scandir(base + folder) as found:
            for one in found:
                path = prefix + one.name
                if one.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif is_bytecode:
                    bytecode.append(path)
                elif path not in OWN_FILES:
                    files[path] = _seen(one)
    return Listing(files, tuple(bytecode))


def _seen(entry: os.DirEntry[str]) -> Seen:
    stat = entry.stat(follow_symlinks=False)
    if entry.is_symlink():
        return Seen(0, 0, str(Path(entry.path).readlink()))
    return Seen(stat.st_size, stat.st_mtime_ns, num_names=stat.st_nlink)


def source_of(bytecode: str) -> str:
    """The source that a path in `__pycache__` was compiled from.

    >>> source_of("lib/a/__pycache__/b.cpython-311.pyc")
    'lib/a/b.py'
    """
    folder, _, name = bytecode.rpartition("/")
    return f"{folder.removesuffix('__pycache__')}{name.split('.', 1)[0]}.py"


def entries(files: dict[str, Seen], hashes: dict[str, str]) -> dict[str, Entry]:
    """Manifest entries from a listing and the hashes of its regular files."""
    return {
        path: Entry(seen.size, seen.mtime_ns, hashes.get(path, ""), seen.link) for path, seen in sorted(files.items())
    }


def dumped(manifest: Manifest) -> bytes:
    """The manifest as its file holds it; an entry is one short list, since there are tens of thousands."""
    rows = {
        owner: {name: [one.size, one.mtime_ns, one.sha256 if one.link is None else f"-> {one.link}"]
                for name, one in files.items()}
        for owner, files in manifest.items()
    }  # fmt: skip
    return json.dumps({"schema": _SCHEMA, "distributions": rows}, separators=(",", ":")).encode()


def read(path: Path) -> Manifest:
    """The manifest in the file."""
    rows = json.loads(path.read_bytes())["distributions"]
    return {owner: {name: _entry(*row) for name, row in files.items()} for owner, files in rows.items()}


def read_or_empty(path: Path) -> Manifest:
    """The manifest in the file, an empty one where it cannot be read."""
    try:
        return read(path)
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _entry(size: int, mtime_ns: int, mark: str) -> Entry:
    if mark.startswith("-> "):
        return Entry(size, mtime_ns, "", mark[3:])
    return Entry(size, mtime_ns, mark)


def read_totals(path: Path) -> tuple[int, int]:
    """Number of files and their bytes as the manifest in the file says, zeros where it cannot be read."""
    return totals(read_or_empty(path))


def totals(manifest: Manifest) -> tuple[int, int]:
    """Number of files and their bytes."""
    everything = [one for files in manifest.values() for one in files.values()]
    return len(everything), sum(one.size for one in everything)
