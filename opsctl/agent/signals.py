"""Ends all processes of a run, politely first: the decision (pure) and one step of doing it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence

from opsctl.agent.processes import Stat, carrying, environ, pids, stat

# stands in the environment of a run's tmux server and recorder, whose parent may be another run's recorder
RECORDER_VARIABLE = "OPSCTL_RECORDER"

Members = Callable[[], Sequence[Stat]]


def roots(members: Iterable[Stat]) -> tuple[Stat, ...]:
    """The members whose parent is none: a root ends its own children in its own way, so it alone is asked.

    >>> child, job = Stat(3, "S", 2, 3, 3, 0, 0, 0), Stat(2, "S", 1, 2, 2, 0, 0, 0)
    >>> [one.pid for one in roots((child, job))]
    [2]
    """
    found = tuple(members)
    own = {one.pid for one in found}
    return tuple(one for one in found if one.parent not in own)


def descendants(of: int, stats: Iterable[Stat], *, without: Collection[int] = ()) -> tuple[Stat, ...]:
    """Children of `of`, their children and so on; the trees that begin in `without` are left out."""
    children: dict[int, list[Stat]] = {}
    for one in stats:
        children.setdefault(one.parent, []).append(one)
    found: list[Stat] = []
    waiting = [one for one in children.get(of, ()) if one.pid not in without]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting.extend(children.get(one.pid, ()))
    return tuple(found)


def members_of(
    run_id: str, *, reaper: int | None = None, holder: int | None = None, helpers: Collection[int] = ()
) -> tuple[Stat, ...]:
    """Every living process of a run: those that carry its id, and those below `reaper` and `holder` that dropped it.

    `helpers` are children of the reaper that are no part of the run; nor is a run that this run started.
    """
    stats = {one.pid: one for one in map(stat, pids()) if one is not None}
    found = {pid: stats[pid] for pid in carrying(run_id) if pid in stats}
    if reaper is not None:
        apart = {*helpers, *(one.pid for one in stats.values() if one.parent == reaper and _is_recorder(one.pid))}
        found |= {one.pid: one for one in descendants(reaper, stats.values(), without=apart)}
    if holder is not None:
        found |= {one.pid: one for one in descendants(holder, stats.values())}
    return tuple(one for one in found.values() if one.state not in "ZX" and one.pid != os.getpid())


def _is_recorder(pid: int) -> bool:
    return any(entry.startswith(f"{RECORDER_VARIABLE}=".encode()) for entry in environ(pid))


class Ending:
    """Asks the roots with SIGTERM, and kills what is left after the deadline."""

    def __init__(self, members: Members, *, deadline: float) -> None:
        self._members = members
        self._asked: set[tuple[int, int]] = set()
        self.deadline = deadline
        self.left: tuple[Stat, ...] = ()

    def step(self, now: float) -> bool:
        """Do what is due at `now`; True when no process is left. To be called again and again."""
        self.left = tuple(self._members())
        for one in self.left if now >= self.deadline else self._not_asked():
            self._send(one, signal.SIGKILL if now >= self.deadline else signal.SIGTERM)
        return not self.left

    def _not_asked(self) -> tuple[Stat, ...]:
        new = tuple(one for one in roots(self.left) if (one.pid, one.start) not in self._asked)
        self._asked |= {(one.pid, one.start) for one in new}
        return new

    def _send(self, one: Stat, number: signal.Signals) -> None:
        # gone in between, or another user's (setuid): the next step sees which
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, number)
            if number == signal.SIGTERM:
                os.kill(one.pid, signal.SIGCONT)  # a stopped process must wake up to hear it
