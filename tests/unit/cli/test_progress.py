"""What is told of a long reading, by a clock of the test's own."""

from __future__ import annotations

import pytest

from opsctl.cli.progress import reading


class Clock:
    """Moves on when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_long_reading_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with reading("diagnose big.log", clock=clock) as tell:
        for second in range(13):
            clock.now = float(second)
            tell(second * 10_000_000, 200_000_000)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "diagnose big.log: 50 of 200 MB read (25 %, 15 s left)",
        "diagnose big.log: 100 of 200 MB read (50 %, 10 s left)",
    ]


def test_a_quick_reading_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with reading("diagnose train.log") as tell:
        tell(5, 5)
    assert capsys.readouterr().err == ""
