"""Archives of caches: written through a compressor's pipe, read back with every member checked.

A cache holds code that runs when it is loaded, so nothing in an archive is taken on trust: only
regular files that the manifest names, below the folder they are unpacked into.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from opsctl.errors import CheckFailed, CommandFailed, DiskFull, MissingTool

_ZSTANDARD = """
import sys, zstandard
pack = sys.argv[1] == "pack"
codec = zstandard.ZstdCompressor(level=3, threads=-1) if pack else zstandard.ZstdDecompressor()
codec.copy_stream(sys.stdin.buffer, sys.stdout.buffer)
"""
_GZIP = """
import gzip, shutil, sys
if sys.argv[1] == "pack":
    with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=6, mtime=0) as out:
        shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
else:
    shutil.copyfileobj(gzip.GzipFile(fileobj=sys.stdin.buffer), sys.stdout.buffer, 1 << 20)
"""
_CHUNK_BYTES = 1 << 20
_COPY_MODE = 0o755

_TELL_PERIOD_S = 0.3

Told = Callable[[int, int], None]  # bytes done, bytes in all; called now and then


@dataclass(frozen=True)
class Codec:
    """How archives are compressed here: two programs that read stdin and write stdout."""

    suffix: str
    pack: tuple[str, ...]
    unpack: tuple[str, ...]


def _python_codec(suffix: str, python: str, script: str) -> Codec:
    argv = (python, "-I", "-B", "-c", script)
    return Codec(suffix, (*argv, "pack"), (*argv, "unpack"))


def _has_zstandard(python: str) -> bool:
    argv = (python, "-I", "-B", "-c", "import zstandard")
    try:
        return subprocess.run(argv, capture_output=True, timeout=60.0, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def zstd_codec(pythons: tuple[str, ...]) -> Codec | None:
    """zstd by its own program, else by the first of these Pythons that has the zstandard library."""
    if shutil.which("zstd"):
        return Codec(".tar.zst", ("zstd", "-T0", "-3", "-q", "-c"), ("zstd", "-d", "-q", "-c"))
    for python in pythons:
        if _has_zstandard(python):
            return _python_codec(".tar.zst", python, _ZSTANDARD)
    return None


def gzip_codec() -> Codec:
    """What every Python can do, ten times slower; the archive's name says so."""
    return _python_codec(".tar.gz", sys.executable, _GZIP)


def codec_for(archive: Path, pythons: tuple[str, ...]) -> Codec:
    """What reads this archive; raises MissingTool where it cannot be read here."""
    if archive.name.endswith(".tar.gz"):
        return gzip_codec()
    codec = zstd_codec(pythons)
    if codec is None:
        raise MissingTool(
            f"{archive.name} is compressed with zstd, and nothing here reads that",
            hint="install the program zstd on the target, or put zstandard into the set",
        )
    return codec


def pack(root: Path, names: list[str], archive: Path, codec: Codec, *, told: Told) -> None:
    """Write the files `names` of `root` into a new archive, and to the disk."""
    total = sum((root / name).stat().st_size for name in names)
    done, told = 0, seldom(told)
    with packing(archive, codec) as tar:
        for name in names:
            done += _add(tar, root / name, name)
            told(done, total)


@contextlib.contextmanager
def packing(archive: Path, codec: Codec) -> Iterator[tarfile.TarFile]:
    """A new archive to put members into; it is on the disk once the block has ended."""
    with archive.open("wb") as out, piped(codec.pack, stdin=subprocess.PIPE, stdout=out) as child:
        assert child.stdin is not None
        with tarfile.open(fileobj=child.stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            yield tar
        child.stdin.close()
    with archive.open("rb") as written:
        os.fsync(written.fileno())


def _add(tar: tarfile.TarFile, path: Path, name: str) -> int:
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        member = tarfile.TarInfo(name)
        member.size = stat.st_size
        member.mtime = int(stat.st_mtime)
        member.mode = stat.st_mode & _COPY_MODE
        tar.addfile(member, file)
    return stat.st_size


def seldom(told: Told) -> Told:
    """The same, called at most a few times a second: a cache has thousands of files."""
    last = [0.0]

    def tell(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= _TELL_PERIOD_S:
            last[0] = now
            told(done, total)

    return tell


@contextlib.contextmanager
def piped(argv: tuple[str, ...], **streams: int | IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A compressor for the length of the block; raises CommandFailed or DiskFull if it fails, or we by it."""
    child = subprocess.Popen(argv, stderr=subprocess.PIPE, **streams)  # type: ignore[call-overload]  # they are Popen's
    broken: Exception | None = None
    try:
        yield child
    except (BrokenPipeError, tarfile.ReadError) as error:
        broken = error
    except BaseException:
        child.kill()
        _close(child)
        raise
    said = _close(child)
    if child.returncode == 0 and broken is None:
        return
    if "No space left" in said:
        raise DiskFull("no space left on the target while writing an archive", hint="free space there, then try again")
    raise CommandFailed(f"{argv[0]} ended with status {child.returncode}: {said or broken}")


def _close(child: subprocess.Popen[bytes]) -> str:
    """Close our ends, wait for its end, and return what it said."""
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended first; its status tells why
                stream.close()
    assert child.stderr is not None
    with child.stderr:
        said: bytes = child.stderr.read()
    child.wait()
    return said.decode(errors="replace").strip()


# --- reading back ------------------------------------------------------------------------------------


def is_safe_name(name: str) -> bool:
    """Whether a member's name stays below the folder that it is unpacked into, in one spelling only.

    >>> [is_safe_name(name) for name in ("a/b", "../a", "/a", "a/../b", "a//b", "")]
    [True, False, False, False, False, False]
    """
    path = PurePosixPath(name)
    is_plain = bool(name) and not name.startswith("/") and "\0" not in name and "\\" not in name
    return is_plain and str(path) == name and ".." not in path.parts and name != "."


def refusal(member: tarfile.TarInfo, expected: dict[str, str], seen: set[str]) -> str:
    """Why this member must not be unpacked, "" if it may; pure."""
    if not is_safe_name(member.name):
        return f"the archive holds a name that leads elsewhere: {member.name!r}"
    if not member.isreg():
        return f"the archive holds something that is no plain file: {member.name!r}"
    if member.name not in expected:
        return f"the archive holds a file that its manifest does not name: {member.name!r}"
    if member.name in seen:
        return f"the archive holds {member.name!r} twice"
    return ""


Take = Callable[[tarfile.TarFile, tarfile.TarInfo], str]  # does something with a member, and returns its sha256


def unpack(archive: Path, root: Path, expected: dict[str, str], codec: Codec, *, limit_bytes: int, told: Told) -> None:
    """Unpack into the empty folder `root`; raises CheckFailed for any member that is not as `expected`."""
    _read(archive, expected, codec, lambda tar, member: _extract(tar, member, root), limit_bytes=limit_bytes, told=told)


def check(archive: Path, expected: dict[str, str], codec: Codec, *, limit_bytes: int, told: Told) -> None:
    """Read an archive without keeping anything; raises CheckFailed for any member that is not as `expected`."""
    _read(archive, expected, codec, _skim, limit_bytes=limit_bytes, told=told)


def _read(archive: Path, expected: dict[str, str], codec: Codec, take: Take, *, limit_bytes: int, told: Told) -> None:
    seen: set[str] = set()
    done, told = 0, seldom(told)
    with unpacking(archive, codec) as tar:
        for member in tar:
            done += member.size
            problem = refusal(member, expected, seen) or ("" if done <= limit_bytes else "the archive is too large")
            if problem:
                raise CheckFailed(problem, hint="the archive is not one of ours; nothing of it was kept")
            if take(tar, member) != expected[member.name]:
                raise CheckFailed(f"{member.name} in the archive is not what its manifest says")
            seen.add(member.name)
            told(done, limit_bytes)
    if missing := sorted(expected.keys() - seen):
        raise CheckFailed(f"the archive lacks {len(missing)} files of its manifest, first {missing[0]}")


@contextlib.contextmanager
def unpacking(archive: Path, codec: Codec) -> Iterator[tarfile.TarFile]:
    """The members of an archive, to be taken in their order."""
    with archive.open("rb") as packed, piped(codec.unpack, stdin=packed, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with tarfile.open(fileobj=child.stdout, mode="r|") as tar:
            yield tar
        shutil.copyfileobj(child.stdout, _Nowhere())  # what pads the end, so that the program ends by itself


class _Nowhere:
    """Takes bytes and forgets them."""

    def write(self, data: bytes) -> int:
        return len(data)


def _pieces(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source = tar.extractfile(member)
    assert source is not None, "a regular file has content"
    while data := source.read(_CHUNK_BYTES):
        yield data


def _skim(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    state = hashlib.sha256()
    for data in _pieces(tar, member):
        state.update(data)
    return state.hexdigest()


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> str:
    path = root / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    state = hashlib.sha256()
    with path.open("xb") as out:
        for data in _pieces(tar, member):
            state.update(data)
            out.write(data)
    path.chmod(member.mode & _COPY_MODE | 0o600)
    os.utime(path, (member.mtime, member.mtime))
    return state.hexdigest()
