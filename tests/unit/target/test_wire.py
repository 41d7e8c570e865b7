"""What goes out on a call: uploads wait until the agent has used enough of them, controls do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from opsctl.formats.frames import WINDOW_BYTES, FrameReader
from opsctl.records.call import Outcome
from opsctl.target.wire import Outgoing
from tests.support.until import until

PIECE = bytes(1_000_000)


class Sink:
    """A channel that takes all and keeps the messages."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._lock = threading.Lock()
        self.messages: list[dict[str, object]] = []
        self.is_ended = False

    def write(self, data: bytes) -> None:
        with self._lock:
            self.messages += list(self._reader.feed(data))

    def close_input(self) -> None:
        self.is_ended = True

    def read(self, timeout_s: float) -> bytes:
        raise NotImplementedError

    def error_tail(self) -> str:
        return ""

    def outcome(self, timeout_s: float) -> Outcome:
        return Outcome("timed_out")

    def close(self) -> None:
        pass

    def num_bytes(self) -> int:
        with self._lock:
            return sum(len(message["data"]) for message in self.messages if "data" in message)  # type: ignore[arg-type]

    def kinds(self) -> list[object]:
        with self._lock:
            return [message.get("type") for message in self.messages]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def outgoing(sink: Sink) -> Iterator[Outgoing]:
    found = Outgoing(sink)
    yield found
    found.stop()


def test_uploads_wait_for_the_agent(sink: Sink, outgoing: Outgoing) -> None:
    outgoing.ask({"protocol": 1}, iter([PIECE] * 10), ())
    until(lambda: sink.num_bytes() >= WINDOW_BYTES)
    assert WINDOW_BYTES <= sink.num_bytes() < WINDOW_BYTES + len(PIECE)
    assert "end" not in sink.kinds()
    outgoing.credit(sink.num_bytes())
    outgoing.credit(10 * len(PIECE))
    until(lambda: "end" in sink.kinds())
    assert sink.num_bytes() == 10 * len(PIECE)


def test_controls_do_not_wait(sink: Sink, outgoing: Outgoing) -> None:
    outgoing.ask({"protocol": 1}, iter([PIECE] * 10), iter([{"type": "signal", "number": 2}]))
    until(lambda: sink.num_bytes() >= WINDOW_BYTES and "signal" in sink.kinds())


def test_a_source_that_fails_ends_the_input_and_is_kept(sink: Sink, outgoing: Outgoing) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk went away")

    outgoing.ask({"protocol": 1}, failing(), ())
    until(lambda: sink.is_ended)
    assert isinstance(outgoing.failure, OSError)
    assert "end" not in sink.kinds()


def test_a_call_that_is_over_frees_its_threads(sink: Sink, outgoing: Outgoing) -> None:
    before = threading.active_count()
    outgoing.ask({"protocol": 1}, iter([PIECE] * 10), ())
    until(lambda: sink.num_bytes() >= WINDOW_BYTES)
    outgoing.stop()
    until(lambda: threading.active_count() <= before)
