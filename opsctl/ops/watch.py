"""Follows a run through lost links: events in order, no byte of the log lost, nothing told twice."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from opsctl.errors import Disconnected, ProtocolError, Unreachable
from opsctl.ops.host_kernel import HostKernel
from opsctl.ops.jobs import reconnecting
from opsctl.ops.watch_state import WatchEvent
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json, to_json
from opsctl.records.run import RunStatus
from opsctl.target.client import AgentClient, Message

_BACKLOG_KINDS = ("finding", "metrics", "sample")
_RESUMED_ROWS = 2000  # of each file, so that a pause of minutes loses no row
_LINK_LOST = (Disconnected, Unreachable)


def look(workspace: Workspace, run: str = "") -> Generator[WatchEvent, None, None]:
    """What is known about a run now; raises TargetError where the target cannot be reached.

    `run` is an id or a name; "" is the newest live run, else the newest one.
    """
    request = {"run": run, "once": True}
    for message in workspace.client.stream("run-watch", request):
        yield from events_of(message)


def watch(workspace: Workspace, run: str = "") -> Generator[WatchEvent, None, None]:
    """What happens to a run until it is over; the last event is its status then.

    A link that is lost later gives a `link` event and is taken up again with growing pauses, for as
    long as it takes; a first contact that fails raises TargetError. Closing the generator ends the call.
    """
    yield from Follower(workspace.client, run).events()


def events_of(message: Message) -> Iterator[WatchEvent]:
    """The event that a message of the agent is."""
    if message["type"] == "record":
        yield WatchEvent(time.time(), message["kind"], message["record"])
    elif message["type"] == "result":
        yield WatchEvent(time.time(), "status", message["result"])


@dataclass(frozen=True)
class _Stream:
    """A call that has answered, with its first message."""

    first: Message
    rest: Generator[Message, None, None]

    def messages(self) -> Iterator[Message]:
        yield self.first
        yield from self.rest


class Follower:
    """One watch: where it stands in the log, and which rows it has passed on."""

    verb = "run-watch"

    def __init__(self, client: AgentClient, run: str) -> None:
        self._client = client
        self._run = run
        self._next_byte: int | None = None
        self._last_rows: dict[str, dict[str, Any]] = {}  # by kind, to know a backlog's old rows by
        self._is_resumed = False
        self._host_kernel: HostKernel | None = None

    def events(self) -> Generator[WatchEvent, None, None]:
        try:
            yield from self._events()
        finally:
            if self._host_kernel is not None:
                self._host_kernel.close()

    def _events(self) -> Generator[WatchEvent, None, None]:
        stream = self._open()
        while True:
            try:
                with contextlib.closing(stream.rest):
                    yield from self._pass_on(stream)
                return
            except _LINK_LOST as error:
                yield _link(is_up=False, problem=error.message)
            stream = self._reopen()
            yield _link(is_up=True)

    def _open(self) -> _Stream:
        rest = self._client.stream(self.verb, self._request())
        return _Stream(next(rest), rest)

    def _request(self) -> dict[str, Any]:
        place = {"start": self._next_byte, "backlog": _RESUMED_ROWS} if self._is_resumed else {}
        return {"run": self._run, **place}

    def _reopen(self) -> _Stream:
        self._is_resumed = True
        return reconnecting()(self._open)

    def _pass_on(self, stream: _Stream) -> Iterator[WatchEvent]:
        held: dict[str, list[WatchEvent]] = {kind: [] for kind in _BACKLOG_KINDS}
        for message in stream.messages():
            for event in events_of(message):
                if self._is_resumed and event.kind in held:
                    self._hold(held[event.kind], event)
                elif event.kind == "caught_up":
                    for late in itertools.chain(*held.values(), (event,)):
                        yield self._noted(late)
                    self._is_resumed, held = False, {}
                else:
                    yield self._noted(event)
            yield from self._of_host()
            if message["type"] == "result":
                return
        raise ProtocolError(f"{self.verb} ended without a result")

    def _of_host(self) -> Iterator[WatchEvent]:
        """What looking at the host's kernel log brought to light."""
        while self._host_kernel is not None and not self._host_kernel.findings.empty():
            yield WatchEvent(time.time(), "finding", to_json(self._host_kernel.findings.get()))

    def _look_at_host(self, status: RunStatus) -> None:
        if self._host_kernel is None and not status.run.reads_kernel and status.state == "running":
            self._host_kernel = HostKernel(self._client, status.run)

    def _hold(self, rows: list[WatchEvent], event: WatchEvent) -> None:
        """Keep a row of a resumed backlog; the one that was told last makes all before it old."""
        if event.record == self._last_rows.get(event.kind):
            rows.clear()
        else:
            rows.append(event)

    def _noted(self, event: WatchEvent) -> WatchEvent:
        """The event itself, after it is noted where to resume."""
        if event.kind == "status":
            self._run = event.record["run"]["run_id"]  # a resumed watch stays with this run
            self._look_at_host(from_json(RunStatus, event.record))
        elif event.kind == "log":
            self._note_log(event.record)
        elif event.kind in _BACKLOG_KINDS:
            self._last_rows[event.kind] = event.record
        return event

    def _note_log(self, record: dict[str, Any]) -> None:
        self._next_byte = record["end"]


def _link(*, is_up: bool, problem: str = "") -> WatchEvent:
    record: dict[str, Any] = {"is_up": is_up, "problem": problem}
    return WatchEvent(time.time(), "link", record)
