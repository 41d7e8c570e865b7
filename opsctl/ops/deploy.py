"""Sources for a run: named by commit and content, packed, sent once. Reads the project; writes only on the target."""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.config import CodeConfig
from opsctl.errors import ConfigError
from opsctl.ops.workspace import Workspace
from opsctl.target.client import in_chunks

LIMIT_MIB = 256
_GIT_LIMIT_S = 30.0


@dataclass(frozen=True)
class Code:
    """Sources on the target: the folder's name below `code/`, and where they come from."""

    name: str
    origin: str
    is_dirty: bool
    is_new: bool = False


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


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *words), capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe(folder: Path, code: CodeConfig, sha256: str) -> Code:
    """How these sources are called: by commit where the tree is clean, by content where it is not."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return Code(sha256[:16], "files outside of git", is_dirty=True)
    changes = _git(folder, "status", "--porcelain", "--", *code.paths)
    if changes:
        return Code(sha256[:16], f"{commit} + uncommitted changes", is_dirty=True)
    return Code(f"{commit[:12]}-{sha256[:8]}", commit, is_dirty=False)


def deploy(workspace: Workspace) -> Code:
    """Bring the project's sources to the target, unless they are there; raises ConfigError, DiskFull."""
    archive = workspace.sources
    sha256 = hashlib.sha256(archive).hexdigest()
    code = describe(workspace.folder, workspace.config.code, sha256)
    request = {"name": code.name, "origin": code.origin, "sha256": sha256}
    if workspace.client.call("has-code", request)["is_there"]:
        return code
    workspace.client.call("put-code", request, uploads=in_chunks(archive))
    return Code(code.name, code.origin, code.is_dirty, is_new=True)
