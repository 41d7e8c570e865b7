"""Sources for a run: named by commit and content, sent once. Writes only on the target."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opsctl.config import CodeConfig
from opsctl.ops.workspace import Workspace
from opsctl.target.client import in_chunks

_GIT_LIMIT_S = 30.0


@dataclass(frozen=True)
class Code:
    """Sources on the target: the folder's name below `code/`, and where they come from."""

    name: str
    origin: str
    is_dirty: bool
    is_new: bool = False


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
