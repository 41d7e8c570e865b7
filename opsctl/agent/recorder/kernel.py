"""What the kernel says: processes it killed for memory, and its own log where we may read it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.recorder.metrics import MetricsTail
from opsctl.detect.kernel import FIRST_PID_NAMESPACE

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_CHUNK_BYTES = 8192
KERNEL_LOG = "/dev/kmsg"
MAX_SEEN = 4096  # handed rows that are remembered: a kernel may complain for weeks
UNREADABLE = (
    "the kernel's log is not readable here: Xid and out-of-memory rows are not seen, unless a watch brings them"
)


def cgroup_folders(cgroups: str, mounts: str) -> Iterator[tuple[Path, str]]:
    """The folders that hold a process's memory counters, and the counter file in each.

    `cgroups` is /proc/PID/cgroup, `mounts` /proc/PID/mountinfo. A container without a cgroup namespace
    names the host's path, while its mount shows only the part below the mount's root.
    """
    paths: dict[str, str] = {}
    for row in cgroups.splitlines():
        _, controllers, path = row.split(":", 2)
        paths["" if not controllers else "memory" if "memory" in controllers.split(",") else controllers] = path
    for row in mounts.splitlines():
        fields, _, kind = row.partition(" - ")
        _, _, _, root, point = fields.split(" ")[:5]
        system, _, options = kind.split(" ", 2)
        if system == "cgroup2" and "" in paths:
            yield _below(point, root, paths[""]), "memory.events"
        elif system == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            yield _below(point, root, paths["memory"]), "memory.oom_control"


def _below(point: str, root: str, path: str) -> Path:
    inner = path.removeprefix(root.rstrip("/")) if path.startswith(root) else "/"
    return Path(point + inner)


def counter_files(pid: int) -> tuple[Path, ...]:
    """The files that count the kernel's kills for memory in a process's control groups."""
    proc = Path("/proc") / str(pid)
    with contextlib.suppress(OSError, ValueError):  # gone, hidden, or a form we do not know: unreadable
        folders = cgroup_folders((proc / "cgroup").read_text(), (proc / "mountinfo").read_text())
        return tuple(folder / name for folder, name in folders)
    return ()


class OomCounter:
    """How many processes the kernel has killed for memory in some control groups, and when that last rose."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files
        self._count = self.read()
        self._rose = float("-inf")

    def read(self) -> int | None:
        """The count now; None = unreadable."""
        counts = [count for file in self._files if (count := _count(file)) is not None]
        return max(counts) if counts else None

    def begin(self) -> None:
        """Forget what was counted so far."""
        self._count, self._rose = self.read(), float("-inf")

    def look(self, now: float) -> None:
        """Note whether the count rose since the last look."""
        count = self.read()
        if count is not None and self._count is not None and count > self._count:
            self._rose = now
        self._count = count

    def rose_since(self, moment: float) -> bool | None:
        """Whether it rose at or after that moment; None where nothing is counted."""
        return None if self._count is None else self._rose >= moment


def _count(path: Path) -> int | None:
    try:
        match = _OOM_KILL.search(path.read_text())
    except OSError:
        return None
    return int(match.group(1)) if match else None


@functools.cache
def pid_namespace() -> str:
    """The pid namespace of this process, as pid:[N]; "" where it is hidden."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def sees_host_pids() -> bool:
    """Whether this process is in the first pid namespace, in whose numbers the kernel's log names processes."""
    return pid_namespace() == FIRST_PID_NAMESPACE


def open_kernel_log() -> int | None:
    """A descriptor that gives rows from now on; None where this process may not read them."""
    with contextlib.suppress(OSError):  # not permitted in most containers: said once by the caller
        descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(descriptor, 0, os.SEEK_END)
        return descriptor
    return None


def kernel_rows(descriptor: int) -> Iterator[str]:
    """The rows that came since the last call, as dmesg shows them without its time."""
    while True:
        try:
            record = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:  # the ring buffer overtook us; the next read goes on behind the gap
            continue
        except OSError:
            return
        if not record:
            return
        yield record.partition(b";")[2].split(b"\n", 1)[0].decode(errors="replace")


def handed_path(folder: Path) -> Path:
    """Where watchers put kernel rows that they read on the host."""
    return folder / "kernel.jsonl"


@dataclass(frozen=True)
class HandedRow:
    """A kernel row from the host; `pid` is the process that it names, as this container numbers it.

    `is_own` is False where the host saw that it names a process of another container.
    """

    text: str
    pid: int | None = None
    is_own: bool | None = None


class HandedRows:
    """The rows that watchers hand over; two of them may hand over the same."""

    def __init__(self, folder: Path) -> None:
        self._tail = MetricsTail(handed_path(folder))
        self._rest = b""
        self._seen: set[str] = set()

    def read(self) -> list[HandedRow]:
        """The rows that came since the last call."""
        data = self._rest + self._tail.read()[1]
        *whole, self._rest = data.split(b"\n")
        new = {row.text: row for row in map(_row, whole) if row.text and row.text not in self._seen}
        if len(self._seen) + len(new) > MAX_SEEN:
            self._seen.clear()
        self._seen.update(new)
        return list(new.values())


def _row(data: bytes) -> HandedRow:
    """What a row says; an empty one for a row that a full disk cut short."""
    with contextlib.suppress(ValueError, TypeError):  # the rows after it are as good as ever
        return HandedRow(**json.loads(data))
    return HandedRow("")
