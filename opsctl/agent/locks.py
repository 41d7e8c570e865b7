"""Exclusive locks on the target that say who holds them. A dead owner's flock is free by itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from opsctl.agent.processes import identity
from opsctl.errors import Busy
from opsctl.records.call import from_json, to_json
from opsctl.records.process import LockOwner

# for a lock that a reconnected client takes again: the agent of a frozen one lives on for 15 s, and holds it
FROZEN_CLIENT_WAIT_S = 20.0


def describe(owner: LockOwner) -> str:
    """Who, since when and why, as messages say it."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(owner.since))
    return f"{owner.operator} (process {owner.process.pid}) since {since}, for: {owner.why}"


def _owner(descriptor: int) -> LockOwner | None:
    """Whom the lock names; None for a free one, and for one that is just being taken."""
    text = os.pread(descriptor, 4096, 0).decode(errors="replace")
    try:
        return from_json(LockOwner, json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None


def _left(descriptor: int, path: Path) -> str:
    """What to say of an owner that never gave the lock back: the kernel did, when it died or its machine stopped."""
    owner = _owner(descriptor)
    return f"took over lock {path.name}, left by a process that died: {describe(owner)}" if owner else ""


def _write_owner(descriptor: int, operator: str, why: str) -> None:
    me = identity(os.getpid())
    assert me is not None, "a running process has an identity"
    text = json.dumps(to_json(LockOwner(operator, me, time.time(), why))).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


@contextlib.contextmanager
def held(path: Path, *, operator: str, why: str, wait_s: float = 0.0) -> Iterator[str]:
    """Hold the lock at `path`; blocks up to `wait_s`, then raises Busy naming the owner.

    Yields a sentence on a dead owner from whom it was taken over, "" where there was none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        _take(descriptor, path, time.monotonic() + wait_s)
        left = _left(descriptor, path)
        _write_owner(descriptor, operator, why)
        try:
            yield left
        finally:
            os.ftruncate(descriptor, 0)  # given back: whoever finds an owner here finds a dead one
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = _owner(descriptor)
                message = (
                    f"lock {path.name} is held by {describe(owner) if owner else 'somebody who is just taking it'}"
                )
                raise Busy(message, hint="wait for it, or end what holds it") from None
            time.sleep(0.05)
        else:
            return
