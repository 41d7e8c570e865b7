"""Processes as /proc shows them: identity, trees, what a run owns. Reads only; `signals` ends them."""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.records.events import ProcessSample
from opsctl.records.process import ProcessIdentity

PROC = Path("/proc")
RUN_ID_VARIABLE = "OPSCTL_RUN_ID"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that we use; times in clock ticks."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    start: int
    rss_pages: int


def parse_stat(text: str) -> Stat:
    """The fields of one /proc/PID/stat row, whose command may hold blanks and brackets."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def _read(pid: int, name: str) -> bytes:
    """A file of a process; without pathlib, since a recorder reads hundreds a second for as long as a run lasts."""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, 1 << 16)
        while piece and len(data) >= 1 << 12:  # more than a page may have more behind it
            piece = os.read(descriptor, 1 << 16)
            data += piece
    finally:
        os.close(descriptor)
    return data


def stat(pid: int) -> Stat | None:
    """What /proc says of a process, or None if it is gone, or another user's and hidden (hidepid)."""
    try:
        return parse_stat(_read(pid, "stat").decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


@functools.cache
def boot_id() -> str:
    """The kernel's id of this boot; containers on one host share it."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def _init_start() -> int:
    """When PID 1 started, 0 where /proc hides it from us."""
    init = stat(1)
    return init.start if init else 0


def is_this_boot(process: ProcessIdentity) -> bool:
    """Whether a process is of this boot and this container, as far as /proc lets us see."""
    inits = {process.init_start, _init_start()}
    return process.boot_id == boot_id() and (len(inits) == 1 or 0 in inits)


def _is_hidden(pid: int) -> bool:
    """Whether a process lives that /proc does not show: another user's, who has not let us look."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def identity(pid: int) -> ProcessIdentity | None:
    """The identity of a process that lives now, or None."""
    found = stat(pid)
    return ProcessIdentity(boot_id(), _init_start(), pid, found.start) if found else None


def is_alive(process: ProcessIdentity | None) -> bool:
    """Whether this very process still runs; a zombie does not. One that /proc hides from us counts as alive."""
    if process is None or not is_this_boot(process):
        return False
    found = stat(process.pid)
    if found is None:
        return _is_hidden(process.pid)
    return found.start == process.start and found.state not in "ZX"


def owner(pid: int) -> int:
    """The Unix user whose process it is, -1 where it is gone."""
    try:
        return (PROC / str(pid)).stat().st_uid
    except FileNotFoundError:
        return -1


def user_name(uid: int) -> str:
    """The name of a Unix user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def pids() -> Iterator[int]:
    """The ids of all processes that we can see."""
    with os.scandir(PROC) as entries:
        yield from [int(entry.name) for entry in entries if entry.name.isdigit()]


def environ(pid: int) -> tuple[bytes, ...]:
    """The NAME=VALUE entries that a process was started with; () where it is gone or another user's."""
    try:
        data = _read(pid, "environ")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()
    return tuple(data.split(b"\0"))


def words(pid: int) -> tuple[bytes, ...]:
    """The command line that a process shows; () where it is gone, is the kernel's, hidden or shows none."""
    try:
        data = _read(pid, "cmdline")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()
    return tuple(data.removesuffix(b"\0").split(b"\0")) if data else ()


def run_entry(run_id: str) -> bytes:
    """The entry that every process of a run carries."""
    return f"{RUN_ID_VARIABLE}={run_id}".encode()


def carrying(run_id: str) -> tuple[int, ...]:
    """The processes that were started with this run's id in their environment, zombies apart.

    The environment survives setsid, double forks and reparenting; torchrun gives each rank a
    session of its own, so that groups and sessions would miss them.
    """
    entry = run_entry(run_id)
    return tuple(pid for pid in pids() if entry in environ(pid))


def sample(members: tuple[int, ...]) -> ProcessSample:
    """States, CPU time and memory of these processes; those that are gone are left out."""
    found = [one for one in map(stat, members) if one is not None]
    return ProcessSample(
        num_processes=len(found),
        states="".join(one.state for one in found),
        cpu_s=sum(one.cpu_ticks for one in found) / _TICKS_PER_S,
        rss_mib=sum(one.rss_pages for one in found) * _PAGE_MIB,
    )
