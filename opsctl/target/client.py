"""Talks to the agent inside a target: pushes it once, calls its verbs, and notices a dead link."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from opsctl.errors import Disconnected, MissingTool, OpsctlError, ProtocolError, TimedOut, error_named
from opsctl.records import PROTOCOL
from opsctl.target.host import Channel
from opsctl.target.package import AgentPackage, agent_package
from opsctl.target.target import Target

BEAT_PERIOD_S = 1.0
SILENCE_LIMIT_S = 5.0
_START_LIMIT_S = 30.0
_UPLOAD_CHUNK_BYTES = 1 << 19

# The words after it are data: home, sha256, size, python, verb. Nothing of a user is ever pasted in.
BOOTSTRAP = r"""h=$1 s=$2 n=$3 p=$4 v=$5
case $h in '~') h=$HOME;; '~/'*) h=$HOME/${h#??};; esac
a=$h/agent/opsctl-agent-$(printf %.12s "$s").pyz
command -v "$p" >/dev/null 2>&1 || { echo opsctl-no-python; exit 69; }
if [ -f "$a" ] && [ "$(sha256sum <"$a")" = "$s  -" ]; then :; else
  umask 077; mkdir -p "$h/agent" || exit 73
  echo opsctl-push; t=$a.$$.part
  head -c "$n" >"$t" && [ "$(sha256sum <"$t")" = "$s  -" ] && mv "$t" "$a" || { rm -f "$t"; exit 74; }
fi
echo opsctl-ready
exec "$p" "$a" "$v"
"""

Message = dict[str, Any]


class AgentClient:
    """Calls verbs of the agent on one target; each call is one process there."""

    def __init__(self, target: Target, *, operator: str, package: Callable[[], AgentPackage] = agent_package) -> None:
        self.target = target
        self._operator = operator
        self._package = package

    def call(
        self,
        verb: str,
        request: dict[str, Any] | None = None,
        *,
        uploads: Iterable[bytes] = (),
        on_progress: Callable[[Message], None] | None = None,
    ) -> Any:
        """The verb's result; raises the error that the agent names, or Disconnected."""
        for message in self.stream(verb, request, uploads=uploads):
            if message["type"] == "result":
                return message["result"]
            if message["type"] == "progress" and on_progress:
                on_progress(message)
        raise ProtocolError(f"{verb} on {self.target.label} ended without a result")

    def stream(
        self, verb: str, request: dict[str, Any] | None = None, *, uploads: Iterable[bytes] = ()
    ) -> Generator[Message, None, None]:
        """Progress, record and result messages as they come; closing the generator ends the call."""
        channel = self.target.start(self._bootstrap_argv(verb))
        stop_beating = threading.Event()
        try:
            lines = _Lines(channel, self.target.label)
            self._hand_over(channel, lines)
            self._ask(channel, request or {}, uploads)
            threading.Thread(target=_beat, args=(channel, stop_beating), name="beat", daemon=True).start()
            yield from self._messages(lines)
        except Disconnected as error:
            raise self.target.explained(error) from None
        finally:
            stop_beating.set()
            channel.close()

    def _bootstrap_argv(self, verb: str) -> tuple[str, ...]:
        package = self._package()
        words = (self.target.home, package.sha256, str(len(package.data)), self.target.python, verb)
        return ("sh", "-c", BOOTSTRAP, "opsctl", *words)

    def _hand_over(self, channel: Channel, lines: _Lines) -> None:
        """Wait until the agent starts, and send it first where the target lacks it."""
        while True:
            word = lines.next(_START_LIMIT_S)
            if word == b"opsctl-ready":
                return
            if word == b"opsctl-push":
                channel.write(self._package().data)
            elif word == b"opsctl-no-python":
                raise MissingTool(
                    f"{self.target.python} is not on {self.target.label}",
                    hint="install python3 (3.10 or newer) there, or set `python:` of the target to one that is",
                )

    def _ask(self, channel: Channel, request: dict[str, Any], uploads: Iterable[bytes]) -> None:
        head = {"protocol": PROTOCOL, "home": self.target.home, "operator": self._operator, "request": request}
        _send(channel, head)
        for piece in uploads:
            _send(channel, {"type": "data", "data": base64.b64encode(piece).decode()})
        _send(channel, {"type": "end"})

    def _messages(self, lines: _Lines) -> Iterator[Message]:
        for message in lines.messages():
            kind = message.get("type")
            if kind == "error":
                error = message["error"]
                raise error_named(error["kind"], error["message"], hint=error["hint"])
            if kind in ("progress", "record", "result"):
                yield message
            if kind == "result":
                return


class _Lines:
    """The rows of a channel's output; silence and a sudden end are errors."""

    def __init__(self, channel: Channel, label: str) -> None:
        self._channel = channel
        self._label = label
        self._pending = b""

    def next(self, limit_s: float = SILENCE_LIMIT_S) -> bytes:
        """The next row without its newline."""
        while b"\n" not in self._pending:
            self._pending += self._read(limit_s)
        line, _, self._pending = self._pending.partition(b"\n")
        return line

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
        errors = self._channel.error_tail().strip()
        said = "\n".join(errors.splitlines()[-10:]) or f"nothing on stderr; outcome: {outcome}"
        if outcome.code == 69:
            return MissingTool(said, hint="set `python:` of the target to a newer Python there")
        return Disconnected(f"the agent on {self._label} ended early: {said}")

    def messages(self) -> Iterator[Message]:
        """The rows as messages."""
        while True:
            line = self.next()
            try:
                message = json.loads(line)
            except ValueError:
                raise ProtocolError(f"the agent on {self._label} said {line[:200]!r}") from None
            yield message


def _send(channel: Channel, message: Message) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reading side tells why it left
        channel.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def _beat(channel: Channel, stop: threading.Event) -> None:
    while not stop.wait(BEAT_PERIOD_S):
        with contextlib.suppress(OSError, ValueError):  # closed under us: the call is over
            channel.write(b"{}\n")


def in_chunks(data: bytes) -> Iterator[bytes]:
    """Pieces of an upload, small enough for one message each."""
    for start in range(0, len(data), _UPLOAD_CHUNK_BYTES):
        yield data[start : start + _UPLOAD_CHUNK_BYTES]
