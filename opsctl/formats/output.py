"""Where a file that a person names is written: never in place of a device, a FIFO or a socket.

Shared by both sides, and shipped inside the agent: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from opsctl.errors import UsageError

_KINDS = {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


def output_place(path: Path) -> Path:
    """Where a new file at `path` belongs: there, or where a link there leads, so that the link stays.

    A folder is left to the caller. Raises UsageError for a device, a FIFO, a socket, and a link to nothing.
    """
    try:
        place = Path(os.path.realpath(path, strict=True)) if path.is_symlink() else path
    except OSError as error:
        raise UsageError(
            f"{path} is a link to {path.readlink()}: {error.strerror}", hint="name the file itself, or remove the link"
        ) from None
    refuse_special(place)
    return place


def refuse_special(place: Path) -> None:
    """Raise UsageError for what a file must not replace; what is missing, a file, a folder or a link passes."""
    try:
        kind = _KINDS.get(stat.S_IFMT(place.lstat().st_mode))
    except FileNotFoundError:
        return
    if kind:
        raise UsageError(f"{place} is a {kind}, and a file would replace it", hint="name a file")


def write_output(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all; raises OSError that names `path`, whatever refused it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):  # in a folder that refuses even this there is none
            part.unlink()
