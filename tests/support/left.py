"""Finding processes that should not be there any more, inside containers too: all of them show in our /proc."""

from __future__ import annotations

import secrets
from pathlib import Path

from opsctl.agent.processes import pids, stat


def unique_nap() -> str:
    """The seconds of a sleep that no other test sleeps."""
    return f"600.{secrets.randbelow(10**9):09d}"


def sleeping(nap: str) -> list[int]:
    """The processes that sleep for exactly so long."""
    return [pid for pid in pids() if _words(pid)[:2] == [b"sleep", nap.encode()]]


def agents(home: str) -> list[int]:
    """The agents that serve this home."""
    start = f"{home}/agent/".encode()
    return [pid for pid in pids() if any(word.startswith(start) for word in _words(pid)[1:4])]


def _words(pid: int) -> list[bytes]:
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:  # gone
        return []
    found = stat(pid)
    return words if found and found.state != "Z" else []
