"""The bytecode of an environment: compiled once for each content of a distribution, and kept for later builds.

A pack is named by the Python and by the hashes of all sources that it was compiled from; it is written right after
they were compiled, and its own hash is checked before it is used. What a wheel or uv's cache brought is not kept.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.env.install import Installed
from opsctl.agent.env.python import Python
from opsctl.agent.env.scripts import program
from opsctl.agent.files import folder_mode, sweep
from opsctl.agent.home import Home
from opsctl.agent.jobs import Progress
from opsctl.errors import CommandFailed

_SUFFIX = ".pyc-pack"
_UNUSED_S = 60 * 86400.0  # packs that no build asked for this long are removed
_HASH_BYTES = 32
_HEAD_BYTES = 8
# a .pyc: magic number, flags (0: by time and size), the source's time, its size, the code
_TIME = slice(8, 12)
_NEWEST_TIME = 0xFFFFFFFF


@dataclass(frozen=True)
class Sources:
    """The sources of one distribution: path relative to the environment -> sha256."""

    label: str
    hashes: dict[str, str]


def sources(installed: Installed) -> Iterator[Sources]:
    """What is to be compiled, by the distribution that brought it."""
    files = installed.files.files
    for one in installed.distributions:
        paths = (row.path for row in one.files if row.path.endswith(".py") and "/site-packages/" in row.path)
        hashes = {path: installed.hashes[path] for path in paths if path in files and path in installed.hashes}
        if hashes:
            yield Sources(one.label, hashes)


def key(some: Sources, python: Python) -> str:
    """The name of the pack; pure."""
    rows = [f"{path} {sha256}" for path, sha256 in sorted(some.hashes.items())]
    return hashlib.sha256("\n".join([python.version, python.platform, *rows]).encode()).hexdigest()[:32]


def compiled_path(source: str, cache_tag: str) -> str:
    """Where Python looks for a source's bytecode.

    >>> compiled_path("lib/a/b.py", "cpython-311")
    'lib/a/__pycache__/b.cpython-311.pyc'
    """
    folder, _, name = source.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.{cache_tag}.pyc"


def packed(members: dict[str, bytes]) -> bytes:
    """Bytecode by source as one pack."""
    head = json.dumps([[path, len(data)] for path, data in members.items()]).encode()
    body = len(head).to_bytes(_HEAD_BYTES, "big") + head + b"".join(members.values())
    return hashlib.sha256(body).digest() + body


def unpacked(pack: bytes | mmap.mmap) -> Iterator[tuple[str, memoryview]]:
    """The members of a pack; raises ValueError where it is not what was written.

    >>> [(name, bytes(data)) for name, data in unpacked(packed({"a.py": b"x", "b.py": b"yz"}))]
    [('a.py', b'x'), ('b.py', b'yz')]
    """
    view = memoryview(pack)
    body = view[_HASH_BYTES:]
    if hashlib.sha256(body).digest() != view[:_HASH_BYTES]:
        raise ValueError("the pack was changed or cut")
    start = _HEAD_BYTES + int.from_bytes(body[:_HEAD_BYTES], "big")
    for path, size in json.loads(bytes(body[_HEAD_BYTES:start])):
        yield path, body[start : start + size]
        start += size


class Bytecode:
    """The packs of one target, for one Python."""

    def __init__(self, home: Home, python: Python) -> None:
        self._folder, self._mode = home.bytecode, folder_mode(home.root)
        self._python = python
        version = python.version.split(".")
        self._cache_tag = f"cpython-{version[0]}{version[1]}"

    def fill(self, root: Path, installed: Installed, progress: Progress, *, interpreter: Path, pool: Executor) -> None:
        """Give every source of the environment at `root` its bytecode: from packs, and compiled where there is none."""
        for path in installed.files.bytecode:  # brought by a wheel or a cache, and never held against a RECORD
            (root / path).unlink()
        everything = sorted(sources(installed), key=lambda some: -len(some.hashes))
        times = {path: seen.mtime_ns for path, seen in installed.files.files.items()}
        restored = pool.map(
            _restore,
            map(self._pack, everything),
            itertools.repeat(str(root)),
            ({path: times[path] for path in some.hashes} for some in everything),
            itertools.repeat(self._cache_tag),
        )
        missing = [some for some, is_there in zip(everything, restored, strict=True) if not is_there]
        if missing:
            _compile(root, [path for some in missing for path in some.hashes], progress, interpreter)
            self._keep(root, missing)
        self._forget_old()

    def _pack(self, some: Sources) -> Path:
        return self._folder / f"{key(some, self._python)}{_SUFFIX}"

    def _keep(self, root: Path, compiled: list[Sources]) -> None:
        self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
        for some in compiled:
            members = {}
            for path in some.hashes:
                with contextlib.suppress(FileNotFoundError):  # it does not parse
                    members[path] = (root / compiled_path(path, self._cache_tag)).read_bytes()
            part = self._pack(some).with_suffix(f".{os.getpid()}.part")
            try:
                part.write_bytes(packed(members))
                part.replace(self._pack(some))
            except OSError:  # the environment is what was asked for; a later build compiles again
                part.unlink(missing_ok=True)
                return

    def _forget_old(self) -> None:
        sweep(self._folder, "*.part")
        for pack in self._folder.glob(f"*{_SUFFIX}"):
            if pack.stat().st_mtime < time.time() - _UNUSED_S:
                pack.unlink()


def _restore(pack: Path, root: str, times: dict[str, int], cache_tag: str) -> bool:
    """Write bytecode from a pack, for sources of these times; False where none fits, and then none is left."""
    try:
        members = [(path, data) for path, data in unpacked(_mapped(pack)) if path in times]
    except FileNotFoundError:
        return False
    except (ValueError, OSError):
        pack.unlink(missing_ok=True)
        return False
    for folder in {path.rpartition("/")[0] for path, _ in members}:
        Path(root, folder, "__pycache__").mkdir(exist_ok=True)
    for path, data in members:
        _write(f"{root}/{compiled_path(path, cache_tag)}", data, times[path])
    os.utime(pack)
    return True


def _mapped(pack: Path) -> mmap.mmap:
    """The file's bytes where they lie in memory anyway; raises ValueError for an empty one."""
    with pack.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _write(path: str, data: memoryview, mtime_ns: int) -> None:
    """Write one .pyc for a source of this time."""
    head = bytearray(data[:16])
    head[_TIME] = (mtime_ns // 10**9 & _NEWEST_TIME).to_bytes(4, "little")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        if os.writev(descriptor, (head, data[16:])) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def _compile(root: Path, paths: list[str], progress: Progress, interpreter: Path) -> None:
    num_workers = len(os.sched_getaffinity(0))
    request = json.dumps({"root": str(root), "paths": paths, "num_workers": num_workers})
    argv = (str(interpreter), "-I", "-B", "-W", "ignore", "-c", program("compile_script"))
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors, subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=errors) as child:
        assert child.stdin is not None, "it was asked for"
        assert child.stdout is not None, "it was asked for"
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its status and its words say why
            child.stdin.write(request.encode())
            child.stdin.close()
        for row in child.stdout:
            done = int(row)
            progress.phase("compile", f"{done} of {len(paths)} files", done=done, total=len(paths))
        if child.wait() != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()[-500:]
            raise CommandFailed(f"compiling ended with status {child.returncode}: {said}")
