"""Finding processes that should not be there any more, inside containers too: all of them show in our /proc."""

from __future__ import annotations

import secrets
from pathlib import Path

from opsctl.agent.processes import pids, stat
from tests.support.place import Place


def unique_nap() -> str:
    """The seconds of a sleep that no other test sleeps."""
    return f"600.{secrets.randbelow(10**9):09d}"


def sleeping(nap: str) -> list[int]:
    """The processes that sleep for exactly so long."""
    return [pid for pid in pids() if _words(pid)[:2] == [b"sleep", nap.encode()]]


def agents(home: str, inside: Place | None = None) -> list[int]:
    """The agents that serve this home, `inside` this container only: others have a home of the same name."""
    start = f"{home}/agent/".encode()
    found = [pid for pid in pids() if any(word.startswith(start) for word in _words(pid)[1:4])]
    if inside is None or inside.init_pid is None:
        return found
    namespace = _pid_namespace(inside.init_pid())
    return [pid for pid in found if _pid_namespace(pid) == namespace]


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # gone
        return ""


def _words(pid: int) -> list[bytes]:
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:  # gone
        return []
    found = stat(pid)
    return words if found and found.state != "Z" else []
