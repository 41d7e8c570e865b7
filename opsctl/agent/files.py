"""Writing and reading small files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from opsctl.records.call import from_json, to_json

T = TypeVar("T")
_LEFTOVER_S = 3600.0  # nobody takes that long between two writes of one file


def fsync_folder(folder: Path) -> None:
    """Make renames in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_shared(folder: Path) -> bool:
    """Whether a group may write there: what we make in it is that group's too, and else the owner's alone."""
    return bool(folder.stat().st_mode & 0o020)


def file_mode(folder: Path) -> int:
    """The mode of a new file in `folder`."""
    return 0o660 if is_shared(folder) else 0o600


def folder_mode(folder: Path) -> int:
    """The mode of a new folder in `folder`."""
    return 0o770 if is_shared(folder) else 0o700


def write_atomic(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Put `data` at `path` whole or not at all: `.part`, fsync, rename; `mode` is else that of its folder.

    The part's name holds our pid, so that two writers never share one.
    """
    mode = file_mode(path.parent) if mode is None else mode
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_record(path: Path, record: Any) -> None:
    """Write a record as JSON, atomically."""
    write_atomic(path, (json.dumps(to_json(record), indent=1) + "\n").encode())


def read_record(cls: type[T], path: Path) -> T | None:
    """The record of class `cls` in the file, or None if there is no file."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return from_json(cls, json.loads(data))


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, also while somebody else removes it too."""
    from shutil import rmtree  # 10 ms that a call which removes nothing must not pay

    while path.is_symlink() or path.exists():
        with contextlib.suppress(FileNotFoundError):  # the other one was quicker
            rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def stale(folder: Path, *patterns: str) -> Iterator[Path]:
    """What writers that were killed left in `folder`: what fits a pattern and was not written for an hour."""
    newest = time.time() - _LEFTOVER_S
    for path in [found for pattern in patterns for found in folder.glob(pattern)]:
        with contextlib.suppress(FileNotFoundError):  # its writer, or another sweep, has it
            if path.lstat().st_mtime < newest:
                yield path


def sweep(folder: Path, *patterns: str) -> None:
    """Remove all that."""
    for path in stale(folder, *patterns):
        remove(path)
