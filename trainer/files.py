"""Writes files so that a reader, or a crash at any moment, sees the old one whole or the new one whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, flush it to the disk, and rename it into place."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def output_file(name: str) -> Path:
    """The file that a user names for a document, links followed; raises ValueError for what it could not replace."""
    path = Path(name).absolute()
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{path} is a link to {path.readlink()}, which is not there")
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file, and a document would replace it")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")
    return path


def write_json(path: Path, value: Any) -> None:
    """Write `value` as a JSON document, atomically."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON document in `path`, None where there is no file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def sync_file(path: Path) -> None:
    """Flush an existing file to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
