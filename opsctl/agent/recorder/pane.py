"""The recorder's tmux pane: shows the job's output, hands on what is typed, and may vanish at any time."""

from __future__ import annotations

import os
import termios
from collections.abc import Callable

from opsctl.agent.recorder.loop import READ, WRITE, Loop

BUFFER_LIMIT_BYTES = 256 * 1024
_CHUNK_BYTES = 1 << 16


def _pass_keys_through(descriptor: int) -> None:
    """Every key reaches us as it is, Ctrl-C too; what we write still gets its carriage returns."""
    input_modes, output_modes, control_modes, local_modes, *rest = termios.tcgetattr(descriptor)
    input_modes &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP | termios.BRKINT)
    output_modes |= termios.OPOST | termios.ONLCR
    local_modes &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    modes = [input_modes, output_modes, control_modes, local_modes, *rest]
    termios.tcsetattr(descriptor, termios.TCSANOW, modes)


class Pane:
    """Never blocks and never fails: a pane that is slow loses its oldest output, one that is gone all."""

    def __init__(self, loop: Loop, on_keys: Callable[[bytes], None], *, input_fd: int = 0, output_fd: int = 1) -> None:
        self._loop = loop
        self._on_keys = on_keys
        self._input_fd = input_fd
        self._output_fd = output_fd
        self._pending = b""
        self._is_open = os.isatty(input_fd) and os.isatty(output_fd)
        if self._is_open:
            self._open()

    def _open(self) -> None:
        try:
            _pass_keys_through(self._input_fd)
        except (termios.error, OSError):
            self._is_open = False  # the tmux server died before we came up
            return
        os.set_blocking(self._input_fd, False)
        os.set_blocking(self._output_fd, False)
        self._loop.watch(self._input_fd, READ, self._read)

    def show(self, data: bytes) -> None:
        """Put output on the screen as soon as the terminal takes it."""
        if not self._is_open:
            return
        waited = bool(self._pending)
        self._pending += data
        if not waited:
            self._write(WRITE)
        if len(self._pending) > BUFFER_LIMIT_BYTES:
            self._pending = _newest(self._pending)

    def flush(self) -> None:
        """Write once more what waits; for the end."""
        if self._is_open and self._pending:
            self._write(WRITE)

    def _read(self, events: int) -> None:
        try:
            keys = os.read(self._input_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return  # woken for nothing
        except OSError:
            keys = b""
        if keys:
            self._on_keys(keys)
        else:
            self._close()

    def _write(self, events: int) -> None:
        try:
            written = os.write(self._output_fd, self._pending[:_CHUNK_BYTES])
        except BlockingIOError:
            written = 0
        except OSError:
            self._close()
            return
        self._pending = self._pending[written:]
        if self._pending:
            self._loop.watch(self._output_fd, WRITE, self._write)
        else:
            self._loop.forget(self._output_fd)

    def _close(self) -> None:
        self._is_open = False
        self._pending = b""
        self._loop.forget(self._input_fd)
        self._loop.forget(self._output_fd)


def _newest(data: bytes) -> bytes:
    """The last part of `data`, from a row's begin where there is one."""
    tail = data[-BUFFER_LIMIT_BYTES // 2 :]
    _, newline, rest = tail.partition(b"\n")
    return rest if newline else tail
