"""One process at the far end of an SSH connection: both streams drained, every wait bounded, its end told apart."""

from __future__ import annotations

import collections
import contextlib
import signal
import threading
from collections.abc import Callable

import paramiko

from opsctl.errors import TimedOut
from opsctl.records.call import Outcome

_CHUNK_BYTES = 1 << 16
_STDERR_CHUNK_BYTES = 1 << 15
_STDERR_TAIL_CHUNKS = 64
_GONE = (EOFError, OSError, paramiko.SSHException)  # what paramiko says when the link or the channel is no more


def signal_number(name: str) -> int | None:
    """The number of a signal as SSH names it, without its SIG; None for one that this machine lacks.

    >>> signal_number("KILL"), signal_number("KILL@somewhere")
    (9, None)
    """
    with contextlib.suppress(KeyError):  # a signal of another system
        return signal.Signals[f"SIG{name}"].value
    return None


class SshChannel:
    """A process on an SSH host."""

    def __init__(self, channel: paramiko.Channel, on_close: Callable[[], None]) -> None:
        self._channel = channel
        self._on_close = on_close
        self._is_closed = False
        self._writing = threading.Lock()
        self._errors: collections.deque[bytes] = collections.deque(maxlen=_STDERR_TAIL_CHUNKS)
        self._drain = threading.Thread(target=self._drain_errors, name="ssh-stderr", daemon=True)
        self._drain.start()

    def _drain_errors(self) -> None:
        # both streams share one window: an unread stderr would stop stdout
        with contextlib.suppress(*_GONE):  # the link is down, as the reader of stdout hears
            while True:
                with contextlib.suppress(TimeoutError):  # the reader's limit on silence: no matter here
                    data = self._channel.recv_stderr(_STDERR_CHUNK_BYTES)
                    if not data:
                        return
                    self._errors.append(data)

    def write(self, data: bytes) -> None:
        """Send all of `data`, waiting as long as the link lives; raises BrokenPipeError if the process is gone."""
        rest = memoryview(data)
        with self._writing:
            while rest:
                rest = rest[self._send(rest[:_CHUNK_BYTES]) :]

    def _send(self, data: memoryview) -> int:
        try:
            sent = self._channel.send(bytes(data))
        except TimeoutError:  # its window is full; the link's watch ends this wait if it is dead
            return 0
        except _GONE as error:
            raise BrokenPipeError(f"{error}") from None
        if not sent:
            raise BrokenPipeError("the process is gone")
        return sent

    def close_input(self) -> None:
        """End its stdin."""
        with contextlib.suppress(*_GONE):  # it left first
            self._channel.shutdown_write()

    def read(self, timeout_s: float) -> bytes:
        """Some bytes of its stdout; b"" at its end, and where the link is gone: `outcome` tells which."""
        self._channel.settimeout(timeout_s)
        try:
            return self._channel.recv(_CHUNK_BYTES)
        except TimeoutError:
            raise TimedOut(f"no output for {timeout_s:g} s") from None
        except _GONE:  # reading tells the far end that there is room again, which a dead link refuses
            return b""

    def error_tail(self) -> str:
        """The last part of its stderr; waits a moment for the stream's end if its output is over."""
        if self._channel.eof_received or self._channel.exit_status_ready():
            self._drain.join(timeout=1.0)
        return b"".join(self._errors).decode(errors="replace")

    def outcome(self, timeout_s: float) -> Outcome:
        """How it ended; link_lost where the channel closed without a word on that."""
        if not self._channel.status_event.wait(timeout_s):
            return Outcome("timed_out")
        if self._channel.exit_status >= 0:
            return Outcome("exited", code=self._channel.exit_status)
        name = getattr(self._channel, "exit_signal", "")
        return Outcome("killed", signal=signal_number(name)) if name else Outcome("link_lost")

    def close(self) -> None:
        """Give it up: end of input, then the channel; what runs there hears both."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(*_GONE):  # the link is down: nothing to say
            self._channel.close()
        self._on_close()
