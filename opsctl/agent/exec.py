"""One command as a child of a call: its streams both ways, signals, a time limit, a typed outcome."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time

from opsctl.agent.session import Call, Session
from opsctl.errors import CommandFailed, MissingTool, ProtocolError, UsageError
from opsctl.records.call import Outcome

_CHUNK_BYTES = 1 << 16
# once the time is up: what is sent, and how long it is given to work
_ENDING = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
_LAST_WORDS_S = 0.2  # for output under way when the command has ended and descendants hold its streams open
_EXIT = "exit"


def _environment(call: Call) -> dict[str, str]:
    """What the command gets beside the target's own: an environment of Python packages, if asked for."""
    name = call.request.get("env")
    if not name:
        return {}
    from opsctl.agent.env.layout import find  # costs what only --env needs

    root = find(call.home, "" if name == "active" else name).root
    path = os.pathsep.join((f"{root}/bin", os.environ.get("PATH", os.defpath)))
    return {"VIRTUAL_ENV": str(root), "PATH": path, "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _start(call: Call) -> subprocess.Popen[bytes]:
    argv, pipe = tuple(call.request["argv"]), subprocess.PIPE
    if any("\0" in word for word in argv):
        raise UsageError("a word of the command holds a NUL byte", hint="no program can take that")
    stdin = pipe if call.request.get("stdin") else subprocess.DEVNULL
    environment = _environment(call)
    try:
        return call.session.spawn(argv, environment=environment, bufsize=0, stdin=stdin, stdout=pipe, stderr=pipe)
    except FileNotFoundError:
        raise MissingTool(f"no program {argv[0]!r} on the target", hint="check the name and PATH there") from None
    except OSError as error:
        raise CommandFailed(f"cannot start {argv[0]!r}: {error.strerror}") from None


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    if child.returncode is None:  # once it is reaped, its number may be another's
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(child.pid, number)


def _feed(session: Session, child: subprocess.Popen[bytes]) -> None:
    """Pass the client's data on to the command's stdin; what it does not want to read is dropped."""
    assert child.stdin is not None
    is_reading = True
    with contextlib.suppress(ProtocolError, OSError):  # the client is gone, and the session ends us
        for data in session.uploads():
            rest = memoryview(data)
            while rest and is_reading:
                try:
                    rest = rest[os.write(child.stdin.fileno(), rest) :]
                except BrokenPipeError:
                    is_reading = False
    child.stdin.close()


class _TimeLimit:
    """When a command has to end: asked first, then killed, then given up."""

    def __init__(self, timeout_s: float | None) -> None:
        self._due = None if timeout_s is None else time.monotonic() + timeout_s
        self._steps = iter(_ENDING)
        self.is_over = False

    def left_s(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def enforce(self, child: subprocess.Popen[bytes]) -> bool:
        """Send the signal that is due, if one is; False once nothing is left to try."""
        if self._due is None or time.monotonic() < self._due:
            return True
        self.is_over = True
        number, grace_s = next(self._steps, (None, 0.0))
        if number is None:
            return False
        _send(child, number)
        self._due = time.monotonic() + grace_s
        return True


def _pass_on(session: Session, child: subprocess.Popen[bytes], limit: _TimeLimit) -> None:
    """Stream what the command prints, until it has ended and no output is left."""
    exit_in, exit_out = os.pipe()
    threading.Thread(target=_tell_exit, args=(child, exit_out), name="wait", daemon=True).start()
    assert child.stdout is not None
    assert child.stderr is not None
    with selectors.DefaultSelector() as selector:
        for name, descriptor in (("stdout", child.stdout.fileno()), ("stderr", child.stderr.fileno())):
            selector.register(descriptor, selectors.EVENT_READ, name)
        selector.register(exit_in, selectors.EVENT_READ, _EXIT)
        has_ended = False
        while selector.get_map():
            ready = selector.select(_LAST_WORDS_S if has_ended else limit.left_s())
            if (has_ended and not ready) or not limit.enforce(child):
                break
            for key, _ in ready:
                data = os.read(key.fd, _CHUNK_BYTES)
                has_ended |= key.data == _EXIT
                if data and key.data != _EXIT:
                    session.raw(key.data, data)
                else:
                    selector.unregister(key.fd)
    os.close(exit_in)


def _tell_exit(child: subprocess.Popen[bytes], descriptor: int) -> None:
    child.wait()
    os.close(descriptor)


def run(call: Call) -> Outcome:
    """Run request["argv"]; streams stdout and stderr as raw records, returns how it ended.

    Further keys: `stdin` (the client's uploads are its input), `timeout_s`, `env` (an environment's id, or "active").
    Signals from the client go to its process group.
    """
    early: list[int] = []
    call.session.on_signal = early.append
    child = _start(call)
    call.session.on_signal = lambda number: _send(child, number)
    for number in early:
        _send(child, number)
    if child.stdin is not None:
        threading.Thread(target=_feed, args=(call.session, child), name="stdin", daemon=True).start()
    limit = _TimeLimit(call.request.get("timeout_s"))
    _pass_on(call.session, child, limit)
    if limit.is_over:
        call.session.end_children()
        call.session.end_strays()
        return Outcome("timed_out")
    status = child.wait()
    return Outcome("killed", signal=-status) if status < 0 else Outcome("exited", code=status)
