"""Talks to the agent inside a target: pushes it once, calls its verbs, and notices a dead link."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from opsctl.errors import Disconnected, MissingTool, OpsctlError, ProtocolError, error_named
from opsctl.formats.frames import CHUNK_BYTES
from opsctl.records.call import PROTOCOL
from opsctl.target.host import Channel
from opsctl.target.package import AgentPackage, agent_package
from opsctl.target.target import Target
from opsctl.target.wire import Incoming, Outgoing
from opsctl.target.wire import Message as Message  # callers type what they get by it

_START_LIMIT_S = 30.0

# The words after it are data: home, sha256, size, python, verb. Nothing of a user is ever pasted in. A home that
# its group may write is shared: what lies there is the group's.
BOOTSTRAP = r"""h=$1 s=$2 n=$3 p=$4 v=$5
case $h in '~') h=$HOME;; '~/'*) h=$HOME/${h#??};; esac
a=$h/agent/opsctl-agent-$(printf %.12s "$s").pyz
command -v "$p" >/dev/null 2>&1 || { echo opsctl-no-python; exit 69; }
if [ -f "$a" ] && [ "$(sha256sum <"$a")" = "$s  -" ]; then :; else
  case $(ls -ld "$h" 2>/dev/null) in d????w*) umask 007;; *) umask 077;; esac
  mkdir -p "$h/agent" || exit 73
  echo opsctl-push; t=$a.$$.part
  head -c "$n" >"$t" || { rm -f "$t"; echo "(writing $t)" >&2; exit 73; }
  [ "$(sha256sum <"$t")" = "$s  -" ] && mv "$t" "$a" || { rm -f "$t"; exit 74; }
fi
echo opsctl-ready
exec "$p" "$a" "$v"
"""


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
        uploads: Iterable[bytes | Message] = (),
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
        self,
        verb: str,
        request: dict[str, Any] | None = None,
        *,
        uploads: Iterable[bytes | Message] = (),
        controls: Iterable[Message] = (),
    ) -> Generator[Message, None, None]:
        """Progress, record and result messages as they come; closing the generator ends the call.

        `uploads` is read by a thread of its own, as far as the agent keeps up: pieces of data, and messages between
        them. `controls`, read by another, are messages that need not wait for those.
        """
        channel = self.target.start(self._bootstrap_argv(verb))
        incoming, outgoing = Incoming(channel, self.target.label), Outgoing(channel)
        try:
            self._hand_over(channel, incoming)
            outgoing.ask(self._head(request or {}), uploads, controls)
            yield from self._messages(incoming, outgoing)
        except OpsctlError as error:
            if outgoing.failure:
                raise outgoing.failure from None
            if not isinstance(error, Disconnected) or channel.outcome(0.0).kind == "link_lost":
                raise  # with the link down there is nobody to ask
            raise self.target.explained(error) from None
        finally:
            outgoing.stop()
            channel.close()

    def _bootstrap_argv(self, verb: str) -> tuple[str, ...]:
        package = self._package()
        words = (self.target.home, package.sha256, str(len(package.data)), self.target.python, verb)
        return ("sh", "-c", BOOTSTRAP, "opsctl", *words)

    def _hand_over(self, channel: Channel, incoming: Incoming) -> None:
        """Wait until the agent starts, and send it first where the target lacks it."""
        while True:
            word = incoming.row(_START_LIMIT_S)
            if word == b"opsctl-ready":
                return
            if word == b"opsctl-push":
                with contextlib.suppress(BrokenPipeError):  # the next row, or the end, says why
                    channel.write(self._package().data)
            elif word == b"opsctl-no-python":
                raise MissingTool(
                    f"{self.target.python} is not on {self.target.label}",
                    hint="install python3 (3.10 or newer) there, or set `python:` of the target to one that is",
                )

    def _head(self, request: dict[str, Any]) -> Message:
        return {"protocol": PROTOCOL, "home": self.target.home, "operator": self._operator, "request": request}

    def _messages(self, incoming: Incoming, outgoing: Outgoing) -> Iterator[Message]:
        for message in incoming.messages(first_within_s=_START_LIMIT_S):
            kind = message.get("type")
            if kind == "error":
                error = message["error"]
                raise error_named(error["kind"], error["message"], hint=error["hint"])
            if kind == "credit":
                outgoing.credit(message["bytes"])
            elif kind == "raw":
                yield {"type": "record", "kind": message["kind"], "record": message["data"]}
            elif kind in ("progress", "record", "result"):
                yield message
            if kind == "result":
                return


def in_chunks(data: bytes) -> Iterator[bytes]:
    """Pieces of an upload, small enough for one message each."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
