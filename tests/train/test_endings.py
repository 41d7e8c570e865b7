"""What the endings of all ranks amount to."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.endings import Ending, ending_of, outcome


def failed(error: str, exit_code: int, ended_at: float) -> dict[str, Any]:
    return {"exit_code": exit_code, "error": error, "cause": f"{error}: why", "ended_at": ended_at}


FINISHED = {"exit_code": 0, "error": None, "cause": None, "ended_at": 1.0}
STOPPED = {"exit_code": 75, "error": None, "cause": "SIGTERM", "ended_at": 5.0}


def endings(*ranks: tuple[dict[str, Any] | None, int | None]) -> list[Ending]:
    return [ending_of(rank, result, returncode, now=9.0) for rank, (result, returncode) in enumerate(ranks)]


@pytest.mark.parametrize(
    ("ranks", "status", "first"),
    [
        ([(FINISHED, 0), (FINISHED, 0)], 0, None),
        ([(STOPPED, 75), (STOPPED, 75)], 75, None),
        ([(FINISHED, 0), (STOPPED, 75)], 75, None),
        ([(failed("PeerLost", 1, 2.0), 1), (failed("SealBroken", 4, 3.0), 4)], 4, "rank 1: SealBroken: why"),
        ([(failed("NonFiniteError", 3, 2.0), 3), (failed("NonFiniteError", 3, 1.0), 3)], 3, "rank 1: Non"),
        ([(STOPPED, 75), (failed("ConfigError", 2, 1.0), 2)], 2, "rank 1: ConfigError"),
        ([(failed("KeyError", 1, 1.0), 1), (failed("SealBroken", 4, 3.0), 4)], 4, "rank 0: KeyError"),
        ([(failed("PeerLost", 1, 2.0), 1), (None, -9)], 1, "rank 1: killed by SIGKILL"),
        ([(failed("PeerLost", 1, 2.0), 1), (FINISHED, 0)], 1, "rank 0: PeerLost"),
        ([(failed("PeerLost", 1, 2.0), 1), (None, 7)], 1, "rank 1: ended without a result, with status 7"),
        ([(None, None), (None, 0)], 1, "rank 0: ended without a result"),
    ],
)
def test_the_gravest_counts_and_the_first_is_named(
    ranks: list[tuple[dict[str, Any] | None, int | None]], status: int, first: str | None
) -> None:
    exit_code, failure = outcome(endings(*ranks), stopped_by=None)
    assert exit_code == status
    named = f"rank {failure.rank}: {failure.cause}" if failure else None
    assert named is None if first is None else named is not None and named.startswith(first)


def test_a_rank_that_the_launchers_own_stop_killed_has_stopped() -> None:
    both = endings((None, -15), (STOPPED, 75))
    assert outcome(both, stopped_by="SIGTERM") == (75, None)
    assert outcome(both, stopped_by=None)[0] == 1
    assert outcome(endings((None, -9), (STOPPED, 75)), stopped_by="SIGTERM")[0] == 1
