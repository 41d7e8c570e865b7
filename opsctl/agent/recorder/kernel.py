"""What the kernel says: processes it killed for memory, and its own log where we may read it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from opsctl.agent.recorder.metrics import MetricsTail

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # a constant of the kernel, PROC_PID_INIT_INO
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


def oom_kills(pid: int) -> int | None:
    """How many processes the kernel has killed for memory in this process's cgroup; None = unreadable."""
    proc = Path("/proc") / str(pid)
    with contextlib.suppress(OSError, ValueError):  # gone, hidden, or a form we do not know: unreadable
        folders = list(cgroup_folders((proc / "cgroup").read_text(), (proc / "mountinfo").read_text()))
        counts = [count for folder, name in folders if (count := _count(folder / name)) is not None]
        return max(counts) if counts else None
    return None


def _count(path: Path) -> int | None:
    try:
        match = _OOM_KILL.search(path.read_text())
    except OSError:
        return None
    return int(match.group(1)) if match else None


@functools.cache
def sees_host_pids() -> bool:
    """Whether this process is in the first pid namespace, in whose numbers the kernel's log names processes."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:  # hidden: then take nothing for granted
        return False


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


class HandedRows:
    """The rows that watchers hand over; two of them may hand over the same."""

    def __init__(self, folder: Path) -> None:
        self._tail = MetricsTail(handed_path(folder))
        self._rest = b""
        self._seen: set[str] = set()

    def read(self) -> list[str]:
        """The rows that came since the last call."""
        data = self._rest + self._tail.read()[1]
        *whole, self._rest = data.split(b"\n")
        new = [text for text in dict.fromkeys(map(_text, whole)) if text and text not in self._seen]
        if len(self._seen) + len(new) > MAX_SEEN:
            self._seen.clear()
        self._seen.update(new)
        return new


def _text(row: bytes) -> str:
    """What a row says, "" for one that a full disk cut short."""
    with contextlib.suppress(ValueError):  # the rows after it are as good as ever
        text = json.loads(row)
        return text if isinstance(text, str) else ""
    return ""
