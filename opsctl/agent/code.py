"""Verbs has-code and put-code: sources that runs use, unpacked once, read-only, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from opsctl.agent.files import folder_mode, fsync_folder, remove, stale, write_record
from opsctl.agent.hashing import digest
from opsctl.agent.session import Call
from opsctl.agent.uploads import receive
from opsctl.errors import CommandFailed, UsageError

ORIGIN = ".opsctl-origin.json"
_NAME = re.compile(r"[0-9a-f]{12}[0-9a-f-]{0,52}\Z")


def _folder(call: Call) -> Path:
    name = str(call.request["name"])
    if not _NAME.match(name):
        raise UsageError(f"not a name for sources: {name!r}")
    return call.home.code / name


def has_code(call: Call) -> dict[str, Any]:
    """Whether the sources of this name are there."""
    folder = _folder(call)
    return {"is_there": folder.is_dir(), "path": str(folder)}


def put_code(call: Call) -> dict[str, Any]:
    """Unpack the uploaded archive; raises CommandFailed where it is damaged or unsafe."""
    call.home.ensure()
    folder = _folder(call)
    for leftover in stale(folder.parent, ".*.tar", ".*.part"):
        with contextlib.suppress(OSError):  # another user's, or another call is at it: no matter to these sources
            _remove(leftover)
    archive = folder.with_name(f".{folder.name}.{os.getpid()}.tar")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        _receive(call, archive)
        with archive.open("rb") as file:
            num_files = unpack(file, part)
        write_record(
            part / ORIGIN, {"origin": call.request["origin"], "operator": call.operator, "created": time.time()}
        )
        _make_read_only(part)
        if not folder.is_dir():
            part.rename(folder)
            fsync_folder(folder.parent)
    finally:
        archive.unlink(missing_ok=True)
        _remove(part)
    return {"path": str(folder), "num_files": num_files}


def _receive(call: Call, path: Path) -> None:
    receive(call, path, "bringing the sources")
    if digest(path) != call.request["sha256"]:
        raise CommandFailed("the sources arrived damaged", hint="try again")


def safe_name(name: str) -> PurePosixPath:
    """The relative path that an archive's member may have; raises CommandFailed for any other.

    >>> safe_name("trainer/model.py").name
    'model.py'
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise CommandFailed(f"the archive holds the unsafe name {name!r}")
    return path


def unpack(archive: BinaryIO, folder: Path) -> int:
    """Write an archive's files below a new folder; links, devices and names that lead out are refused."""
    folder.mkdir(mode=folder_mode(folder.parent))
    num_files = 0
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise CommandFailed(f"the archive holds {member.name!r}, which is no file")
            path = folder / safe_name(member.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(0o555 if member.mode & 0o100 else 0o444)
            num_files += 1
    return num_files


def _make_read_only(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        Path(path).chmod(0o555)


def _remove(path: Path) -> None:
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o700)
    remove(path)
