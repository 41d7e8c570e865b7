"""One pane of somebody's tmux server, looked at without touching it: its rows, its cursor, its process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import CommandFailed, MissingTool, UsageError

LIMIT_S = 10.0
_FIELDS = (
    "pane_pid", "cursor_y", "history_size", "pane_height", "alternate_on", "pane_dead", "pane_dead_status",
    "pane_dead_signal", "session_created", "session_name", "pane_id", "pane_current_command",
)  # fmt: skip
_GONE = ("can't find", "no server running", "error connecting", "no current", "lost server", "server exited")


@dataclass(frozen=True)
class PaneInfo:
    """What tmux says of the pane now."""

    pid: int
    cursor_row: int
    num_history: int
    height: int
    is_alternate: bool  # an editor or monitor has the screen: it shows nothing of the log
    is_dead: bool
    exit_code: int | None
    signal: int | None
    created: float
    session: str
    pane: str
    command: str


@dataclass(frozen=True)
class Capture:
    """The pane's rows, wraps undone: those above the cursor, and the one that is still being written."""

    rows: tuple[str, ...]
    open_row: str


class PaneGone(Exception):
    """The pane, its session or its server is not there any more."""


class TmuxPane:
    """A pane by the name of its session, or by any target that tmux understands."""

    def __init__(self, name: str, socket: str = "") -> None:
        self._argv = ("tmux", *(("-S", socket) if socket else ()))
        self.socket = socket or default_socket()
        self.target = f"={name}" if ":" in name else f"={name}:"

    def info(self) -> PaneInfo:
        """The pane's state; raises PaneGone."""
        text = self._ask("display-message", "-p", "-t", self.target, "\t".join(f"#{{{name}}}" for name in _FIELDS))
        cells = dict(zip(_FIELDS, text.rstrip("\n").split("\t")))  # noqa: B905 - a cell that an old tmux lacks is empty
        if not cells.get("pane_pid"):
            raise PaneGone(self.target)
        return PaneInfo(
            pid=int(cells["pane_pid"]),
            cursor_row=_number(cells, "cursor_y") or 0,
            num_history=_number(cells, "history_size") or 0,
            height=_number(cells, "pane_height") or 50,
            is_alternate=cells.get("alternate_on") == "1",
            is_dead=cells.get("pane_dead") == "1",
            exit_code=_number(cells, "pane_dead_status"),
            signal=_number(cells, "pane_dead_signal"),
            created=float(_number(cells, "session_created") or 0),
            session=cells.get("session_name", ""),
            pane=cells.get("pane_id", ""),
            command=cells.get("pane_current_command", ""),
        )

    def capture(self, info: PaneInfo, *, num_rows: int | None = None) -> Capture:
        """The newest `num_rows` rows of the history and what stands on the screen; None = the whole history."""
        first = "-" if num_rows is None else str(-num_rows)
        above = self._capture(first, str(info.cursor_row - 1)) if info.cursor_row or info.num_history else ""
        below = self._capture(str(info.cursor_row), "-").split("\n")
        rows = above.split("\n")
        begun = rows.pop()  # "" after a whole row, else the part above the cursor of one that wraps
        if num_rows is not None:
            rows = rows[1:]  # perhaps only the end of one that wraps
        return Capture(tuple(row.rstrip() for row in rows), (begun + below[0]).rstrip())

    def _capture(self, first: str, last: str) -> str:
        return self._ask("capture-pane", "-p", "-J", "-S", first, "-E", last, "-t", self.target)

    def sessions(self) -> list[str]:
        """The sessions of its server; raises PaneGone where none listens."""
        return self._ask("list-sessions", "-F", "#{session_name}").splitlines()

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                (*self._argv, *words), stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"the tmux server at {self.socket} does not answer") from error
        complaint = done.stderr.decode(errors="replace").strip()
        if done.returncode and any(word in complaint for word in _GONE):
            raise PaneGone(complaint)
        if done.returncode:
            raise CommandFailed(f"tmux refused `{' '.join(words[:1])}` of {self.target}: {complaint}")
        return done.stdout.decode(errors="replace")


def _number(cells: dict[str, str], name: str) -> int | None:
    text = cells.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None


def default_socket() -> str:
    """Where this user's tmux server listens if nobody says otherwise."""
    return f"{os.environ.get('TMUX_TMPDIR') or '/tmp'}/tmux-{os.getuid()}/default"  # noqa: S108 - tmux's own place


def open_pane(name: str, socket: str) -> tuple[TmuxPane, PaneInfo]:
    """The pane and its state; raises MissingTool, and UsageError that names what is there instead."""
    if shutil.which("tmux") is None:
        raise MissingTool("tmux is not on the target's PATH", hint="a session can only be watched where tmux is")
    pane = TmuxPane(name, socket)
    try:
        return pane, pane.info()
    except PaneGone:
        raise _absent(name, pane) from None


def _absent(name: str, pane: TmuxPane) -> UsageError:
    with contextlib.suppress(PaneGone):  # no server at all
        names = ", ".join(pane.sessions())
        return UsageError(f"there is no tmux session {name!r} at {pane.socket}", hint=f"sessions there: {names}")
    others = [str(found) for found in Path("/tmp").glob("tmux-*/*") if found.is_socket()]  # noqa: S108 - tmux's place
    hint = f"--socket PATH names another one: {', '.join(others[:5])}" if others else "--socket PATH names another one"
    return UsageError(f"no tmux server listens at {pane.socket}", hint=hint)
