"""Follows a tmux session that opsctl did not start, over lost links; the same events as a run's. Never prints."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from opsctl.ops.watch import Follower, events_of
from opsctl.ops.watch_state import WatchEvent
from opsctl.ops.workspace import Workspace
from opsctl.target.client import AgentClient

TOLD_ROWS = 200  # the agent knows by them what a resumed watch has seen


@dataclass(frozen=True)
class Pane:
    """A session by its name, or any target that tmux understands; `socket` is its server's, "" for the user's own."""

    session: str
    socket: str = ""
    baseline: str = ""  # name of a good run's figures on the target


def look(workspace: Workspace, pane: Pane) -> Generator[WatchEvent, None, None]:
    """What the pane shows and amounts to now; raises UsageError where there is none."""
    for message in workspace.client.stream("pane-watch", {**_request(pane), "once": True}):
        yield from events_of(message)


def watch(workspace: Workspace, pane: Pane) -> Generator[WatchEvent, None, None]:
    """What happens in the pane until its job ends; as `watch.watch` does for a run."""
    yield from _PaneFollower(workspace.client, pane).events()


def _request(pane: Pane) -> dict[str, Any]:
    return {"session": pane.session, "socket": pane.socket, "baseline": pane.baseline}


class _PaneFollower(Follower):
    """Resumes by the rows that it has passed on: a pane has no bytes to count in."""

    verb = "pane-watch"

    def __init__(self, client: AgentClient, pane: Pane) -> None:
        super().__init__(client, "")
        self._pane = pane
        self._told: deque[str] = deque(maxlen=TOLD_ROWS)

    def _request(self) -> dict[str, Any]:
        place = {"start": self._next_byte, "told": list(self._told)} if self._is_resumed else {}
        return {**_request(self._pane), **place}

    def _note_log(self, record: dict[str, Any]) -> None:
        super()._note_log(record)
        self._told.extend(record["text"].splitlines())
