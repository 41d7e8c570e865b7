"""The two directions of a call to the agent: messages in, with silence noticed; requests, uploads and beats out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from opsctl.errors import CommandFailed, Disconnected, MissingTool, OpsctlError, ProtocolError, TimedOut
from opsctl.formats.frames import BEAT, CHUNK_BYTES, WINDOW_BYTES, Frame, FrameReader, frame
from opsctl.target.host import Channel

BEAT_PERIOD_S = 1.0
SILENCE_LIMIT_S = 5.0
_STRAY_LIMIT_BYTES = 4096

Message = Frame


class Incoming:
    """What a channel says: rows while it starts, then messages; silence and a sudden end are errors."""

    def __init__(self, channel: Channel, label: str) -> None:
        self._channel = channel
        self._label = label
        self._pending = b""
        self._stray = b""  # rows that were none of ours: docker says on stdout why it starts nothing

    def row(self, limit_s: float) -> bytes:
        """The next row of ours, without its newline."""
        while True:
            while b"\n" not in self._pending:
                self._pending += self._read(limit_s)
            line, _, self._pending = self._pending.partition(b"\n")
            if line.startswith(b"opsctl-"):
                return line
            self._stray = (self._stray + line + b"\n")[-_STRAY_LIMIT_BYTES:]

    def messages(self, first_within_s: float = SILENCE_LIMIT_S) -> Iterator[Message]:
        """The messages that follow the rows; before the first one a Python has to start, perhaps from a cold disk."""
        frames = FrameReader()
        data, self._pending = self._pending, b""
        try:
            while True:
                yield from frames.feed(data)
                data = self._read(SILENCE_LIMIT_S if data else first_within_s)
        except ProtocolError as error:
            raise ProtocolError(f"the agent on {self._label} sent {error.message}") from None

    def _read(self, limit_s: float) -> bytes:
        try:
            data = self._channel.read(limit_s)
        except TimedOut:
            raise Disconnected(
                f"no sign of life from {self._label} for {limit_s:g} s", hint="the run there goes on; try again"
            ) from None
        if not data:
            raise self._ended()
        return data

    def _ended(self) -> OpsctlError:
        outcome = self._channel.outcome(1.0)
        if outcome.kind == "link_lost":
            return Disconnected(f"the link to {self._label} is lost", hint="the run there goes on; try again")
        stray = (self._stray + self._pending[:_STRAY_LIMIT_BYTES]).decode(errors="replace")
        errors = (stray + self._channel.error_tail()).strip()
        said = "\n".join(errors.splitlines()[-10:]) or f"nothing on stderr; outcome: {outcome}"
        if outcome.code == 69:
            return MissingTool(said, hint="set `python:` of the target to a newer Python there")
        if outcome.code == 73:
            hint = "free space there, or set `home:` of the target to a folder with room that this user may write"
            return CommandFailed(f"cannot write the home on {self._label}: {said}", hint=hint)
        return Disconnected(f"the agent on {self._label} ended early: {said}")


class Outgoing:
    """What a client says, from several threads; a message is never cut by another."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._writing = threading.Lock()
        self._credit = threading.Condition()
        self._ahead_bytes = 0
        self._is_over = threading.Event()
        self.failure: BaseException | None = None  # of the uploads' source

    def ask(self, head: Message, uploads: Iterable[bytes | Message], controls: Iterable[Message]) -> None:
        """Send the request; beats, uploads and controls follow from threads of their own."""
        self._send(frame(head))
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        if controls != ():
            threading.Thread(target=self._control, args=(controls,), name="control", daemon=True).start()
        if uploads == ():
            self._send(frame({"type": "end"}))
        else:
            threading.Thread(target=self._upload, args=(uploads,), name="upload", daemon=True).start()

    def _upload(self, uploads: Iterable[bytes | Message]) -> None:
        try:
            for piece in uploads:
                for data in [frame(piece)] if isinstance(piece, dict) else self._pieces(piece):
                    self._send(data)
                if self._is_over.is_set():
                    return
            self._send(frame({"type": "end"}))
        except BaseException as error:  # noqa: BLE001 - told to the caller, whose thread this is not
            self.failure = error
            self._channel.close_input()

    def _control(self, controls: Iterable[Message]) -> None:
        for message in controls:
            self._send(frame(message))

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), CHUNK_BYTES):
            piece = data[start : start + CHUNK_BYTES]
            self._await_credit(len(piece))
            yield frame({"type": "data"}, piece)

    def _await_credit(self, num_bytes: int) -> None:
        """Wait until the agent has used enough of what it got: it must not pile up there."""
        with self._credit:
            self._credit.wait_for(lambda: self._ahead_bytes < WINDOW_BYTES or self._is_over.is_set())
            self._ahead_bytes += num_bytes

    def credit(self, num_bytes: int) -> None:
        """The agent has used so much of the uploads."""
        with self._credit:
            self._ahead_bytes -= num_bytes
            self._credit.notify_all()

    def _send(self, data: bytes) -> None:
        # gone: the reading side tells why; closed under us: the call is over
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._channel.write(data)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_PERIOD_S):
            if not self._writing.locked():  # a message on its way is a sign of life too
                self._send(BEAT)

    def stop(self) -> None:
        """No further beats and uploads."""
        self._is_over.set()
        with self._credit:
            self._credit.notify_all()
