"""Archives of whole environments made by hand: written as they are, links and modes too, and read back checked."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from opsctl.agent.cache.archive import Codec, Told, is_safe_name, packing, seldom, unpacking
from opsctl.errors import Busy, CheckFailed

FOLDER = "/"  # what a manifest says of a folder
_LINK = "-> "
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Tree:
    """What lies below a folder: relative path -> lstat, folders before what is in them; links are not followed."""

    entries: dict[str, os.stat_result]
    skipped: tuple[str, ...] = ()  # sockets, pipes and devices

    @functools.cached_property
    def num_bytes(self) -> int:
        return sum(one.st_size for one in self.entries.values() if stat.S_ISREG(one.st_mode))

    def same_as(self, other: Tree) -> bool:
        """Whether no file came, went or was written in between; bytecode may be, by any run that imports."""
        return self._marks() == other._marks()

    def _marks(self) -> dict[str, tuple[int, int]]:
        return {
            path: (one.st_size, one.st_mtime_ns)
            for path, one in self.entries.items()
            if not stat.S_ISDIR(one.st_mode) and "__pycache__/" not in path
        }


def tree(root: Path) -> Tree:
    """All that lies below `root`."""
    entries: dict[str, os.stat_result] = {}
    skipped: list[str] = []
    for path, found in _walk(root, ""):
        is_kept = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode)
        if is_kept:
            entries[path] = found
        else:
            skipped.append(path)
    return Tree(entries, tuple(skipped))


def _walk(root: Path, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(root / folder) as found:
        names = sorted(entry.name for entry in found)
    for name in names:
        path = f"{folder}/{name}" if folder else name
        with contextlib.suppress(FileNotFoundError):  # gone again: the second look tells
            seen = (root / path).lstat()
            yield path, seen
            if stat.S_ISDIR(seen.st_mode):
                yield from _walk(root, path)


@dataclass
class _Hashing:
    """A file that remembers what was read of it."""

    file: IO[bytes]
    state: hashlib._Hash = field(default_factory=hashlib.sha256)

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.state.update(data)
        return data


def pack(root: Path, found: Tree, archive: Path, codec: Codec, *, told: Told) -> dict[str, str]:
    """Write the tree into a new archive, and to the disk; returns its manifest.

    Raises Busy where a file changes under our hands.
    """
    manifest: dict[str, str] = {}
    done, total, told = 0, found.num_bytes, seldom(told)
    with packing(archive, codec) as tar:
        for path, seen in found.entries.items():
            manifest[path] = _add(tar, root / path, path, seen)
            done += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
            told(done, total)
    return manifest


def _add(tar: tarfile.TarFile, path: Path, name: str, seen: os.stat_result) -> str:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(seen.st_mode)
    member.mtime = int(seen.st_mtime)
    member.uid, member.gid = seen.st_uid, seen.st_gid
    if stat.S_ISDIR(seen.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
        return FOLDER
    if stat.S_ISLNK(seen.st_mode):
        member.type = tarfile.SYMTYPE
        member.linkname = str(path.readlink())
        tar.addfile(member)
        return _LINK + member.linkname
    member.size = seen.st_size
    with path.open("rb") as file:
        hashing = _Hashing(file)
        try:
            tar.addfile(member, hashing)
        except OSError as error:
            if error.errno is not None:  # a disk's or a pipe's; tarfile's own has no number
                raise
            raise Busy(f"{path} changed while it was archived", hint="try again when nothing installs there") from None
    return hashing.state.hexdigest()


# --- reading back ------------------------------------------------------------------------------------


def unpack(archive: Path, root: Path, manifest: dict[str, str], codec: Codec, *, total_bytes: int, told: Told) -> None:
    """Unpack into the empty folder `root`; raises CheckFailed for any member that is not as `manifest` says."""
    seen: set[str] = set()
    links: list[tuple[str, str]] = []
    folders: list[tuple[Path, int]] = []
    done, told = 0, seldom(told)
    with unpacking(archive, codec) as tar:
        for member in tar:
            _refuse(member, manifest, seen)
            seen.add(member.name)
            if member.issym():
                links.append((member.name, member.linkname))  # last, so that nothing is written through one
            elif member.isdir():
                (root / member.name).mkdir(mode=0o700)
                folders.append((root / member.name, member.mode))
            else:
                _extract(tar, member, root / member.name, manifest[member.name])
            done += member.size
            told(done, total_bytes)
    for name, text in links:
        (root / name).symlink_to(text)
    for folder, mode in reversed(folders):
        folder.chmod(mode)
    if missing := sorted(manifest.keys() - seen):
        raise CheckFailed(f"the archive lacks {len(missing)} entries of its manifest, first {missing[0]}")


def _refuse(member: tarfile.TarInfo, manifest: dict[str, str], seen: set[str]) -> None:
    said = manifest.get(member.name, "")
    is_as_said = (
        (member.issym() and said == _LINK + member.linkname)
        or (member.isdir() and said == FOLDER)
        or (member.isreg() and said not in ("", FOLDER) and not said.startswith(_LINK))
    )
    if not is_as_said or not is_safe_name(member.name) or member.name in seen:
        raise CheckFailed(
            f"the archive holds {member.name!r}, which is not as its manifest says", hint="nothing of it was kept"
        )


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, sha256: str) -> None:
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    hashing = _Hashing(source)
    with path.open("xb") as out:
        shutil.copyfileobj(hashing, out, _CHUNK_BYTES)
    path.chmod(member.mode)
    os.utime(path, (member.mtime, member.mtime))
    if hashing.state.hexdigest() != sha256:
        raise CheckFailed(f"{member.name} in the archive is not what its manifest says")
