"""Programs that opsctl brings to a target: found on this machine or fetched, pushed once, checked by hash there."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from opsctl.errors import CommandFailed, MissingTool
from opsctl.formats.sources import failure, masked, source_variables, uv_environment
from opsctl.ops.jobs import OnProgress, unheard
from opsctl.ops.local_file import pieces, sha256_of_file
from opsctl.ops.sets import configured
from opsctl.ops.workspace import Workspace
from opsctl.records.call import to_json
from opsctl.records.env import Tool


@dataclass(frozen=True)
class UvHashes:
    """The sha256 of one of uv's wheels, and of the program in it."""

    wheel: str
    program: str


# of the version that pyproject.toml pins, for Linux
UV_PROGRAMS = {
    "aarch64": UvHashes(
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
        "bbecb5ac518030bb5e84f1999c577228460192832ac24a92bd772735682979f4",
    ),
    "x86_64": UvHashes(
        "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
        "b73acdf73b96c3ac9e56d2fa933427b3ee6a901e3cce6ba1e3ecb3f91ca0d86a",
    ),
}


@dataclass(frozen=True)
class LocalTool:
    """A program on this machine, ready to be brought."""

    path: Path
    tool: Tool


def _tool(path: Path, sha256: str) -> LocalTool:
    return LocalTool(path, Tool(f"uv-{version('uv')}-{sha256[:12]}", sha256, path.stat().st_size))


def local_uv() -> LocalTool:
    """The uv that opsctl itself depends on."""
    path = _own_uv()
    return _tool(path, sha256_of_file(path))


def _own_uv() -> Path:
    import uv

    return Path(uv.find_uv_bin())


def uv_for(workspace: Workspace, machine: str, *, on_progress: OnProgress = unheard) -> LocalTool:
    """uv for a Linux target whose machine is of this kind; fetched from the configured index where ours is for another.

    Raises MissingTool for a machine that uv is not pinned for, CommandFailed where it cannot be fetched.
    """
    if (platform.system(), platform.machine()) == ("Linux", machine):
        return local_uv()
    pinned = UV_PROGRAMS.get(machine)
    if pinned is None:
        raise MissingTool(
            f"{workspace.target.label} is {machine}, and opsctl pins no uv for it",
            hint=f"known: {', '.join(UV_PROGRAMS)}; run opsctl on a machine of that kind instead",
        )
    kept = user_cache_path("opsctl") / "tools" / f"uv-{version('uv')}-{machine}"
    if not kept.is_file() or sha256_of_file(kept) != pinned.program:
        on_progress({"text": f"fetching uv for {machine}", "done": None, "total": None})
        _fetch(workspace, machine, pinned, kept)
    return _tool(kept, pinned.program)


def _fetch(workspace: Workspace, machine: str, pinned: UvHashes, kept: Path) -> None:
    """Let our uv fetch the other one, from where the configuration says; both hashes are checked."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".uv-", dir=kept.parent) as folder:
        lock = Path(folder) / "uv.lock"
        lock.write_text(f"uv=={version('uv')} --hash=sha256:{pinned.wheel}\n")
        words = ("pip", "install", "--target", f"{folder}/site", "--python", sys.executable, "--no-deps")
        exact = ("--require-hashes", "--only-binary", ":all:", "--python-platform", f"{machine}-manylinux2014")
        run_uv(workspace, (*words, *exact, "--requirements", str(lock)), doing=f"fetching uv for {machine}")
        program = Path(folder) / "site" / "bin" / "uv"
        if (found := sha256_of_file(program)) != pinned.program:
            raise CommandFailed(
                f"uv for {machine} has hash {found} instead of {pinned.program}",
                hint="uv's cache on this machine holds it changed: `uv cache clean uv` clears it",
            )
        program.replace(kept)


def run_uv(
    workspace: Workspace,
    words: tuple[str, ...],
    *,
    doing: str,
    folder: Path | None = None,
    stdin: str = "",
    torch_backend: str = "",
    torch_version: str = "",
) -> str:
    """The stdout of our own uv, which takes files from where the configuration says; raises what its failure means.

    It runs in `folder`, by default the current one.
    """
    variables = source_variables(
        configured(workspace, os.environ), torch_backend=torch_backend, torch_version=torch_version
    )
    environment = uv_environment(variables, dict(os.environ))
    argv = (str(_own_uv()), *words)
    done = subprocess.run(argv, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise failure(masked(done.stderr), done.returncode, doing=doing)
    return done.stdout


def bring(workspace: Workspace, local: LocalTool, *, on_progress: Callable[[dict[str, Any]], None]) -> None:
    """Push the program to the target; the agent refuses it if its hash differs there."""
    request = {"tool": to_json(local.tool)}
    workspace.client.call("put-tool", request, uploads=pieces(local.path), on_progress=on_progress)
