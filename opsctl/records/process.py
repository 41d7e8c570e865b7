"""Which process, and who holds what. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, told apart from any other that had or will have its pid.

    `boot_id` and `init_start` (start of PID 1, clock ticks after boot) together survive a
    container restart, which keeps the boot id and reuses pids; `start` is the process's own.
    """

    boot_id: str
    init_start: int
    pid: int
    start: int


@dataclass(frozen=True)
class LockOwner:
    """Who holds a lock, written inside it."""

    operator: str
    process: ProcessIdentity
    since: float
    why: str
