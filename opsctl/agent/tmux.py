"""tmux through libtmux: one server a run, so that ending one hits no other."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from opsctl.agent.home import RunPaths
from opsctl.agent.processes import RUN_ID_VARIABLE
from opsctl.agent.signals import RECORDER_VARIABLE
from opsctl.errors import CommandFailed, MissingTool

COLUMNS, ROWS = 200, 50
HISTORY_ROWS = 50_000
SOCKET_LIMIT_BYTES = 100  # the kernel takes 107
_SHORT_FOLDER = "/tmp/opsctl-{uid}"  # noqa: S108 - a socket's path must be short; mode and owner are checked


def require_tmux() -> None:
    """Raise MissingTool where there is no tmux."""
    if shutil.which("tmux") is None:
        raise MissingTool("tmux is not on the target's PATH", hint="install it there: apt-get install tmux")


def socket_path(paths: RunPaths, *, uid: int) -> Path:
    """Where the run's server listens: in its folder, or in a short one where that name would be too long."""
    if len(os.fsencode(paths.socket)) <= SOCKET_LIMIT_BYTES:
        return paths.socket
    return Path(_SHORT_FOLDER.format(uid=uid)) / f"{paths.folder.name[-40:]}.sock"


def _make_short_folder(folder: Path) -> None:
    """Make the folder for short socket names; refuse one that another user prepared for us."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CommandFailed(
            f"{folder} is not a private folder of this user, so no tmux socket is put there",
            hint="remove it, or use a shorter `home:`",
        )


@contextmanager
def _clean_environment(run_id: str, secrets: Collection[str]) -> Iterator[None]:
    """What the server and all below it inherit: no secret under any name, and no id of a run around this one."""
    before = os.environ.copy()
    outer = (RUN_ID_VARIABLE, "OPSCTL_RUN_DIR", "TMUX", "TMUX_PANE")
    for name in [name for name, value in before.items() if name in outer or value in secrets]:
        del os.environ[name]
    os.environ[RECORDER_VARIABLE] = run_id
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def start_server(
    path: Path, session: str, argv: tuple[str, ...], *, run_id: str, secrets: Collection[str] = ()
) -> None:
    """Start a server whose one pane runs `argv`; raises CommandFailed with tmux's own words.

    Variables that hold one of `secrets` stay behind: a local agent inherits them from its operator.
    """
    from libtmux import Server  # 130 ms: only where a run starts

    if path.parent.name.startswith("opsctl-"):
        _make_short_folder(path.parent)
    server = Server(socket_path=str(path), config_file="/dev/null")
    size = ("-x", str(COLUMNS), "-y", str(ROWS))
    history = ("set-option", "-g", "history-limit", str(HISTORY_ROWS), ";")
    with _clean_environment(run_id, secrets):
        done = server.cmd("-u", *history, "new-session", "-d", *size, "-s", session, *argv)
    if done.returncode != 0:
        raise CommandFailed(f"tmux did not start: {' '.join(done.stderr) or 'it said nothing'}")


def is_serving(path: str) -> bool:
    """Whether a server listens there; its file alone says nothing, since a dead server leaves it."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def attach_argv(path: str, session: str) -> tuple[str, ...]:
    """The command that shows the run's pane on a terminal."""
    outer = ("env", "-u", "TMUX", "-u", "TMUX_PANE")  # tmux refuses to attach from inside another tmux
    return (*outer, "tmux", "-S", path, "-u", "attach-session", "-t", f"={session}")
