"""Starts the job on a pseudo-terminal, below a process that holds the terminal's session until the run is over.

When the first process of a session ends, the kernel hangs its terminal up and sends SIGHUP to the rest. Were that
process the job, a shell that dies of SIGTERM would take the training below it along, checkpoint and all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.processes import identity
from opsctl.records.call import from_json, to_json
from opsctl.records.process import ProcessIdentity

COLUMNS, ROWS = 200, 50
OOM_SCORE_OF_JOB = 300
_STOP_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@dataclass(frozen=True)
class Job:
    """The job's first process, our end of its terminal, and the process that holds its session.

    `status_fd` gives the first process's wait status, in a row, when it has ended.
    """

    process: ProcessIdentity
    terminal_fd: int
    holder_pid: int
    status_fd: int


def _open_terminal() -> tuple[int, int]:
    """Both ends of a pseudo-terminal whose output passes through byte for byte."""
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    os.set_blocking(ours, False)
    return ours, theirs


def start_job(argv: tuple[str, ...], environment: Mapping[str, str], folder: Path) -> Job:
    """Start `argv` in `folder`; raises OSError (no such program, not executable) as exec does."""
    ours, theirs = _open_terminal()
    status_fd, report_fd = os.pipe()
    holder_pid = os.fork()
    if holder_pid == 0:
        _hold(argv, environment, folder, terminal_fd=theirs, report_fd=report_fd)
    os.close(theirs)
    os.close(report_fd)
    said = json.loads(_read_row(status_fd) or b"0")
    if isinstance(said, dict):
        return Job(from_json(ProcessIdentity, said), ours, holder_pid, status_fd)
    os.close(ours)
    os.close(status_fd)
    raise OSError(said, os.strerror(said))


def _read_row(descriptor: int) -> bytes:
    """One row and not a byte of the next."""
    data = b""
    while not data.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            break
        data += piece
    return data.strip()


def read_status(status_fd: int) -> int | None:
    """The wait status that the holder tells; None where the holder was killed before it could."""
    row = _read_row(status_fd)
    return int(row) if row else None


def _hold(
    argv: tuple[str, ...], environment: Mapping[str, str], folder: Path, *, terminal_fd: int, report_fd: int
) -> None:
    """The holder's whole life; never returns into the recorder whose copy it is."""
    try:
        _become_holder(terminal_fd, report_fd)
        job = subprocess.Popen(
            argv,
            stdin=terminal_fd,
            stdout=terminal_fd,
            stderr=terminal_fd,
            cwd=folder,
            env=dict(environment),
            preexec_fn=_in_job,
        )
        os.close(terminal_fd)  # or its other end would never see that all have left
        _report(report_fd, to_json(identity(job.pid)))  # while it cannot have been reaped
        _, status = os.waitpid(job.pid, 0)
        _report(report_fd, status)
        while True:  # until the recorder has ended what the job left behind, and then us
            signal.pause()
    except OSError as error:
        _report(report_fd, error.errno or 0)
    finally:
        os._exit(1)


def _report(descriptor: int, value: object) -> None:
    os.write(descriptor, json.dumps(value).encode() + b"\n")


def _become_holder(terminal_fd: int, report_fd: int) -> None:
    """A session of our own on the job's terminal; nothing of the recorder's stays open."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it comes when the recorder is dead: then we leave too
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(terminal_fd, termios.TIOCSCTTY, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - between fork and exec: as little as can be
        if int(name) not in (0, 1, 2, terminal_fd, report_fd):
            with contextlib.suppress(OSError):  # the one that lists this folder
                os.close(int(name))


def _in_job() -> None:
    """Between fork and exec: the terminal's foreground group, and no trace of what the recorder ignores."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or taking the foreground would stop us
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    for number in (*_STOP_SIGNALS, signal.SIGTTOU, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:  # noqa: PTH123 - bare, after fork
            score = int(file.read())
            file.seek(0)
            file.write(str(max(score, OOM_SCORE_OF_JOB)))
    except OSError:
        return  # a hardened container keeps it read-only; then the kernel chooses by size alone
