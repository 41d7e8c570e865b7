"""Stop requests: at once where work can be dropped, between steps where it cannot, and never lost."""

from __future__ import annotations

import os
import signal

import pytest

from trainer.signals import StopRequested, StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_raises_at_once(number: signal.Signals) -> None:
    with StopSignals() as signals, pytest.raises(StopRequested, match=number.name):
        os.kill(os.getpid(), number)
    assert signals.requested == number.name


def test_within_held_it_only_sets_the_flag() -> None:
    with StopSignals() as signals:
        with signals.held():
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.requested == "SIGTERM"
        with pytest.raises(StopRequested):
            signals.raise_if_requested()


def test_a_second_signal_does_not_tear_the_handling_of_the_first() -> None:
    with StopSignals() as signals:
        with pytest.raises(StopRequested, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.requested == "SIGTERM"


def test_holds_nest() -> None:
    with StopSignals() as signals, signals.held():
        with signals.held():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested


def test_it_is_no_exception_that_a_broad_handler_swallows() -> None:
    assert not issubclass(StopRequested, Exception)


def test_the_handlers_of_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_forked_child_leaves_the_decision_to_its_parent() -> None:
    with StopSignals() as signals:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)  # must neither raise nor end the child
            os._exit(0 if signals.requested is None else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_once_the_end_is_settled_a_signal_is_only_noted() -> None:
    with StopSignals() as signals:
        signals.settle()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.requested == "SIGTERM"
