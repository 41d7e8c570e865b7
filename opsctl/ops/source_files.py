"""The files of the project that a run needs, and one archive of them. Only reads."""

from __future__ import annotations

import fnmatch
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

from opsctl.config import CodeConfig
from opsctl.errors import ConfigError

LIMIT_MIB = 256


def files(folder: Path, code: CodeConfig) -> list[tuple[str, Path]]:
    """Every file of a run's sources, by its name relative to `folder`, sorted; raises ConfigError."""
    found: dict[str, Path] = {}
    for name in code.paths:
        path = folder / name
        if not path.exists():
            raise ConfigError(f"code.paths names {name!r}, which is not in {folder}", hint="correct it in opsctl.yaml")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"code.paths names {name!r}, which lies outside of {folder}")
        found.update(_below(folder, path, code.exclude))
    return sorted(found.items())


def _below(folder: Path, path: Path, exclude: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    name = path.relative_to(folder).as_posix()
    if any(fnmatch.fnmatch(path.name, pattern) or fnmatch.fnmatch(name, pattern) for pattern in exclude):
        return
    if path.is_symlink() and path.is_dir():
        raise ConfigError(f"{path} is a link to a folder; a run's sources hold files only", hint="exclude it")
    if path.is_dir():
        for child in sorted(path.iterdir()):
            yield from _below(folder, child, exclude)
    elif path.is_file():
        yield name, path


def pack(found: list[tuple[str, Path]]) -> bytes:
    """One archive of these files, the same for the same contents; raises ConfigError for too much."""
    size_mib = sum(path.stat().st_size for _, path in found) / 2**20
    if size_mib > LIMIT_MIB:
        biggest = max(found, key=lambda pair: pair[1].stat().st_size)[0]
        raise ConfigError(
            f"the sources are {size_mib:.0f} MiB, more than {LIMIT_MIB}", hint=f"exclude data; the biggest is {biggest}"
        )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in found:
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o555 if os.access(path, os.X_OK) else 0o444
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
