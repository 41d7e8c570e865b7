"""What the endings of all ranks amount to: one exit status, and the rank that failed first. Pure decisions.

The launcher alone sees a rank that was killed; every other ending is what the rank itself wrote.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer.errors import EXIT_COMPILE, EXIT_CONFIG, EXIT_FINISHED, EXIT_NON_FINITE, EXIT_STOPPED

EXIT_CRASHED = 1
_GRAVEST_FIRST = (EXIT_COMPILE, EXIT_NON_FINITE, EXIT_CONFIG, EXIT_CRASHED, EXIT_STOPPED, EXIT_FINISHED)


@dataclass(frozen=True)
class Ending:
    """How one rank ended: its own exit status (None: it wrote none) or what killed it, why, and when."""

    rank: int
    exit_code: int | None
    cause: str
    ended_at: float
    is_echo: bool = False  # it only saw that another rank was gone
    killed_by: str | None = None

    @property
    def status(self) -> int:
        """The exit status that counts; a rank that was killed, or left no word, has crashed."""
        return EXIT_CRASHED if self.exit_code not in _GRAVEST_FIRST else self.exit_code


def ending_of(rank: int, result: Mapping[str, Any] | None, returncode: int | None, *, now: float) -> Ending:
    """Return the ending of a rank from what it wrote and its process's status (negative: the signal, None: unknown).

    >>> ending_of(1, None, -9, now=0.0).cause
    'killed by SIGKILL'
    """
    if result is not None and result.get("exit_code") is not None:
        is_echo = result.get("error") == "PeerLost"
        return Ending(rank, result["exit_code"], result.get("cause") or "", result["ended_at"], is_echo)
    if returncode is None or returncode >= 0:
        how = "ended without a result" + (f", with status {returncode}" if returncode else "")
        return Ending(rank, returncode or EXIT_CRASHED, how, now)
    name = signal.Signals(-returncode).name
    return Ending(rank, None, f"killed by {name}", now, killed_by=name)


def outcome(endings: Sequence[Ending], *, stopped_by: str | None) -> tuple[int, Ending | None]:
    """Return the exit status of the whole and the rank that failed first, if any did.

    A rank that the launcher's own stop killed before it could say so has stopped too: it had nothing to save yet.
    """
    if stopped_by:
        endings = [replace(one, exit_code=EXIT_STOPPED) if one.killed_by == stopped_by else one for one in endings]
    return gravest(endings), first_failure(endings)


def gravest(endings: Sequence[Ending]) -> int:
    """Return the exit status of the whole: the gravest, where ranks that only lost a peer have no say if others do."""
    own = [one for one in endings if not one.is_echo] or list(endings)
    if all(one.status == EXIT_FINISHED for one in own) and len(own) < len(endings):
        return EXIT_CRASHED
    return min((one.status for one in own), key=_GRAVEST_FIRST.index)


def first_failure(endings: Sequence[Ending]) -> Ending | None:
    """Return the rank that failed first; a rank that lost a peer, or was stopped for it, only where no other did."""
    failed = [one for one in endings if one.status not in (EXIT_FINISHED, EXIT_STOPPED)]
    return min(failed, key=lambda one: (one.is_echo, one.ended_at), default=None)
