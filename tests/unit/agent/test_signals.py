"""Which processes are asked to end, and in which order."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from opsctl.agent import signals
from opsctl.agent.processes import Stat
from opsctl.agent.signals import Ending, descendants, roots


def process(pid: int, parent: int) -> Stat:
    return Stat(pid, "S", parent, pid, pid, 0, 100 + pid, 0)


TREE = (process(10, 1), process(11, 10), process(12, 11), process(20, 10), process(30, 2))


def test_roots_are_those_without_a_parent_in_the_run() -> None:
    assert [one.pid for one in roots(TREE)] == [10, 30]
    assert roots(()) == ()


def test_descendants_leave_out_whole_trees() -> None:
    assert sorted(one.pid for one in descendants(10, TREE)) == [11, 12, 20]
    assert sorted(one.pid for one in descendants(10, TREE, without={11})) == [20]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Signals that would have been sent, without the wake-ups."""
    found: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        if number != signal.SIGCONT:
            found.append((pid, number))

    monkeypatch.setattr(signals.os, "kill", kill)
    return found


def test_each_root_is_asked_once_and_orphans_when_they_become_roots(sent: list[Any]) -> None:
    members = [process(10, 1), process(11, 10)]
    ending = Ending(lambda: members, deadline=5.0)
    assert not ending.step(0.0)
    assert not ending.step(1.0)
    assert sent == [(10, signal.SIGTERM)]
    members[:] = [process(11, 1)]
    assert not ending.step(2.0)
    assert sent == [(10, signal.SIGTERM), (11, signal.SIGTERM)]
    members.clear()
    assert ending.step(3.0)


def test_all_are_killed_after_the_deadline(sent: list[Any]) -> None:
    ending = Ending(lambda: TREE, deadline=5.0)
    assert not ending.step(5.0)
    assert sorted(sent) == [(pid, signal.SIGKILL) for pid in (10, 11, 12, 20, 30)]


def test_a_pid_that_is_used_again_is_asked_again(sent: list[Any]) -> None:
    members = [process(10, 1)]
    ending = Ending(lambda: members, deadline=5.0)
    ending.step(0.0)
    members[:] = [Stat(10, "S", 1, 10, 10, 0, 999, 0)]
    ending.step(1.0)
    assert sent == [(10, signal.SIGTERM)] * 2
