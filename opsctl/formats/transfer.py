"""Files and trees as messages: read on one side, written whole or not at all on the other.

Shared by both sides of `put` and `get`, and shipped inside the agent: standard library only. A tree is a row of
entries; what follows a file's entry are its bytes and a row with their sha256.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from opsctl.errors import CommandFailed, DiskFull, OpsctlError, UsageError
from opsctl.formats.frames import CHUNK_BYTES, Frame
from opsctl.formats.output import output_place, refuse_special

FILE, FOLDER, LINK, FILE_END = "file", "folder", "link", "file-end"
_PERMISSIONS = 0o777  # setuid and the like are the receiver's to give


@dataclass(frozen=True)
class Moved:
    """What a transfer has brought, and where to."""

    path: str
    num_files: int
    num_bytes: int


# --- reading ------------------------------------------------------------------------------------------


def size_of(source: Path) -> int:
    """The bytes of a file, or of all files of a tree."""
    if not source.is_dir():
        return source.stat().st_size
    return sum(path.lstat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())


def reading(source: Path) -> Iterator[Frame | bytes]:
    """A file or a tree as messages, folders before what is in them; raises UsageError for what cannot be moved."""
    try:
        yield from _entries(source.resolve(strict=True), "")
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {error.filename}") from None
    except OSError as error:
        raise CommandFailed(f"cannot read {error.filename or source}: {error.strerror}") from None


def _entries(path: Path, name: str) -> Iterator[Frame | bytes]:
    found = path.lstat()
    entry = {"path": name, "mode": stat.S_IMODE(found.st_mode) & _PERMISSIONS}
    if stat.S_ISREG(found.st_mode):
        yield {"type": FILE, **entry}
        yield from _content(path)
    elif stat.S_ISDIR(found.st_mode):
        yield {"type": FOLDER, **entry}
        for child in sorted(path.iterdir()):
            yield from _entries(child, f"{name}/{child.name}".lstrip("/"))
    elif stat.S_ISLNK(found.st_mode):
        yield {"type": LINK, "path": name, "to": inner_link(name, str(path.readlink()))}
    else:
        raise UsageError(f"{path} is neither a file, a folder nor a link", hint="leave it out of the tree")


def _content(path: Path) -> Iterator[Frame | bytes]:
    state = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK_BYTES):
            state.update(data)
            yield data
    yield {"type": FILE_END, "sha256": state.hexdigest()}


def inner_link(name: str, to: str) -> str:
    """Where a link in a tree leads; raises UsageError if that is outside of the tree.

    >>> inner_link("a/b", "../c")
    '../c'
    """
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), to))
    if posixpath.isabs(to) or inside.split("/")[0] == "..":
        raise UsageError(f"the link {name!r} leads out of the tree, to {to!r}", hint="replace it by what it leads to")
    return to


# --- writing -------------------------------------------------------------------------------------------


def landing(destination: Path, name: str, *, is_folder_meant: bool) -> Path:
    """Where `name` comes to lie: inside a folder that stands or is meant, else at `destination` itself.

    A link to a file is followed. Raises UsageError for a missing folder, and for what is neither file nor folder.
    """
    path = destination / name if is_folder_meant or destination.is_dir() else destination
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="make it first")
    path = path.parent.resolve() / path.name
    return path if path.is_dir() else output_place(path)


def safe_name(name: str) -> PurePosixPath:
    """The relative path that an entry may have; raises CommandFailed for any other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise CommandFailed(f"the transfer holds the unsafe name {name!r}")
    return path


class Writer:
    """Puts the messages of `reading` at `path`: each file whole or not at all, and a new tree too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = path  # of the tree; a new one grows under another name
        self._part = _part_of(path)
        self._file: _PartFile | None = None
        self._folders: list[tuple[Path, int]] = []
        self._unsynced: list[Path] = []
        self.num_files = 0
        self.num_bytes = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._file is not None:
            self._file.discard()
        if self._part.is_dir():
            shutil.rmtree(self._part, ignore_errors=True)
        if isinstance(error, OSError):
            raise _named(error, self._path) from None

    def take(self, message: Frame | bytes) -> None:
        """The next message; raises OSError, or CommandFailed for one that must not be obeyed."""
        if isinstance(message, bytes):
            self._data(message)
        elif message["type"] == FILE:
            self._file = _PartFile(self._place(message["path"]), message["mode"])
        elif message["type"] == FILE_END:
            self._end_file(message["sha256"])
        elif message["type"] == FOLDER:
            self._folder(message["path"], message["mode"])
        elif message["type"] == LINK:
            self._link(message["path"], message["to"])

    def finish(self) -> Moved:
        """Make a new tree visible, and say what has come."""
        if self._file is not None or not (self._folders or self.num_files):
            raise CommandFailed("the transfer ended too early", hint="try again")
        for file in self._unsynced:  # together, since the first one takes most of the others along
            _fsync(file)
        for folder, mode in reversed(self._folders):
            folder.chmod(mode)  # last, since it may forbid writing
        if self._root == self._part:
            self._part.rename(self._path)
        _fsync(self._path.parent)
        return Moved(str(self._path), self.num_files, self.num_bytes)

    def _place(self, name: str) -> Path:
        """Where an entry comes to lie; no link on the way is followed."""
        place, above = self._root, safe_name(name).parts
        for part in above:
            if place.is_symlink() or not place.is_dir():
                raise CommandFailed(f"{place} is no folder of its own, so nothing is written below it")
            place = place / part
        return place

    def _data(self, data: bytes) -> None:
        if self._file is None:
            raise CommandFailed("the transfer holds bytes of no file")
        self._file.write(data)
        self.num_bytes += len(data)

    def _end_file(self, sha256: str) -> None:
        if self._file is not None:
            self._file.finish(sha256, sync=self._root != self._part)
            self._unsynced += [self._file.place] if self._root == self._part else []
            self._file = None
            self.num_files += 1

    def _folder(self, name: str, mode: int) -> None:
        if not self._folders and not self._path.is_dir():
            self._root = self._part
        folder = self._place(name)
        if not folder.is_dir() or folder.is_symlink():
            folder.mkdir(mode=0o700)
        self._folders.append((folder, mode))

    def _link(self, name: str, to: str) -> None:
        place = self._place(name)
        refuse_special(place)
        part = _part_of(place)
        part.symlink_to(inner_link(name, to))
        part.replace(place)


def _part_of(place: Path) -> Path:
    return place.with_name(f".{place.name[:200]}.{os.getpid()}.part")


class _PartFile:
    """A file on its way: beside its place, under another name, until its hash is known to be right."""

    def __init__(self, place: Path, mode: int) -> None:
        if place.is_dir():
            raise CommandFailed(f"{place} is a folder, and a file is to take its place")
        refuse_special(place)
        self.place = place
        self._part = _part_of(place)
        self._state = hashlib.sha256()
        descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._stream: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        os.fchmod(descriptor, mode & _PERMISSIONS)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._stream.write(rest) :]
        self._state.update(data)

    def finish(self, sha256: str, *, sync: bool) -> None:
        if self._state.hexdigest() != sha256:
            raise CommandFailed(f"{self.place} arrived damaged; what was there stays", hint="try again")
        if sync:
            os.fsync(self._stream.fileno())
        self._stream.close()
        self._part.replace(self.place)

    def discard(self) -> None:
        self._stream.close()
        with suppress(FileNotFoundError):  # renamed already
            self._part.unlink()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(error: OSError, path: Path) -> OpsctlError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left for {path}; what was there stays", hint="free space there, then try again")
    return CommandFailed(f"cannot write {error.filename or path}: {error.strerror}; what was there stays")
