"""How much room a build needs, as far as it can be known before; and how files may be linked."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from opsctl.agent.env.layout import standing
from opsctl.agent.env.manifest import read_or_empty
from opsctl.agent.files import sweep
from opsctl.agent.home import Home
from opsctl.errors import DiskFull
from opsctl.formats.lockfile import Pin, wheel_pin

_FICLONE = 0x40049409
_SPARE_BYTES = 8 << 20
_LEAST_GROWTH = 1.5  # of a wheel when it is unpacked: CUDA's libraries grow least
_WHEEL_SIZE = re.compile(r"^wheels = \[\s*\{[^\n]*?\bsize = (\d+)", re.M)
_BYTECODE_SHARE = 1.1  # compiled Python adds about a tenth


def unpacked_bytes(wheel: Path) -> int:
    """What a wheel takes once it is installed."""
    with zipfile.ZipFile(wheel) as archive:
        return sum(member.file_size for member in archive.infolist())


def from_wheels(pins: tuple[Pin, ...], folders: tuple[Path, ...]) -> dict[str, int]:
    """Distribution -> the bytes that it takes, of those pinned wheels that lie in these folders."""
    wanted = {(pin.name, pin.version) for pin in pins}
    largest: dict[str, int] = {}
    for wheel in (path for folder in folders for path in folder.glob("*.whl")):
        name, version = wheel_pin(wheel.name)
        if (name, version) in wanted:
            with contextlib.suppress(zipfile.BadZipFile):  # uv refuses it later, by name
                largest[name] = max(largest.get(name, 0), unpacked_bytes(wheel))
    return largest


def from_last_build(home: Home, name: str, pins: tuple[Pin, ...]) -> dict[str, int]:
    """The same of those pinned distributions that the newest environment of this set holds."""
    of_set = [paths for paths, record in standing(home) if record.name == name]
    manifest = read_or_empty(of_set[-1].manifest) if of_set else {}
    labels = {f"{pin.name}=={pin.version}": pin.name for pin in pins}
    return {
        labels[label]: sum(one.size for one in files.values()) for label, files in manifest.items() if label in labels
    }


def sizes(home: Home, name: str, pins: tuple[Pin, ...], folders: tuple[Path, ...]) -> dict[str, int]:
    """Distribution -> the bytes that it takes, as far as that is known without asking anybody."""
    return {**from_last_build(home, name, pins), **from_wheels(pins, folders)}


def from_pylock(text: str) -> int:
    """The bytes that a pylock.toml's wheels take at least once they are unpacked; pure.

    >>> from_pylock('wheels = [{ url = "https://h/a.whl", size = 1000, hashes = { sha256 = "ab" } }]')
    1500
    """
    return int(sum(map(int, _WHEEL_SIZE.findall(text))) * _LEAST_GROWTH)


def ensure_room(home: Home, needed_bytes: int) -> None:
    """Raise DiskFull before anything is written, where it would not fit."""
    needed = int(needed_bytes * _BYTECODE_SHARE) + _SPARE_BYTES if needed_bytes else 0
    free = shutil.disk_usage(home.envs).free
    if free < needed:
        raise DiskFull(
            f"the environment needs about {needed / 2**20:,.0f} MiB, and {home.envs} has {free / 2**20:,.0f} MiB free",
            hint="free space there, or move `home` of the target to a larger disk",
        )


def link_mode(source: Path, target: Path) -> str:
    """How uv can fill an environment at `target` from its cache at `source` without copying a byte.

    `clone` where the file system shares blocks between these folders, `hardlink` where a file may have a name in each,
    else `copy`. Asked here, since uv falls back from one to the other without a word.
    """
    probe, name = source / f".clone-{os.getpid()}", target / f".clone-{os.getpid()}"
    try:
        sweep(source, ".clone-*")
        probe.write_bytes(b"x" * 4096)
        return "clone" if _clones(probe, name) else "hardlink" if _links(probe, name) else "copy"
    except OSError:
        return "copy"
    finally:
        for path in (probe, name):
            with contextlib.suppress(OSError):  # it was not made, or its folder cannot be written
                path.unlink()


def _clones(probe: Path, name: Path) -> bool:
    try:
        with probe.open("rb") as old, name.open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except OSError:
        name.unlink(missing_ok=True)
        return False
    return True


def _links(probe: Path, name: Path) -> bool:
    with contextlib.suppress(OSError):  # another file system, or one without such links
        name.hardlink_to(probe)
        return name.stat().st_nlink > 1  # some, such as sshfs, link but do not tell: nobody could see what is shared
    return False


def flush(folder: Path) -> None:
    """Put all of the folder's file system on disk; raises OSError where the disk refuses."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def flushed_meanwhile(folder: Path) -> Iterator[None]:
    """Let the disk write what lies in memory while the block works; what fails shows at the last `flush`."""

    def write() -> None:
        with contextlib.suppress(OSError):  # asked again at the end, and told then
            flush(folder)

    thread = threading.Thread(target=write, name="flush", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
