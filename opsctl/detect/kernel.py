"""The fold over kernel rows: Xid events, the OOM killer, faults, blocked tasks; and whether they concern this job."""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.detect.context import Context
from opsctl.detect.gpus import NEIGHBOUR_PIDS, bus_key, is_pythonic
from opsctl.detect.rules import advice, read_json

WEIGHT = {
    "gpu_lost": 95,
    "ecc_error": 92,
    "nvlink_error": 91,
    "driver_hang": 85,
    "host_oom_killed": 80,
    "driver_mismatch": 82,
}
DEFAULT_WEIGHT = 65
FIRST_PID_NAMESPACE = "pid:[4026531836]"  # in whose numbers rows name processes: PROC_PID_INIT_INO, a constant

_UNKNOWN_XID = {
    "name": "not in this table",
    "cause": "hardware_warning",
    "severity": "warning",
    "action": "Look the number up in the GPU vendor's list of Xid errors; watch whether the job goes on.",
}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,5})(.*)")
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,5})")
_PID = re.compile(r"pid='?(\d{1,10})'?")
_NAME = re.compile(r"name=([^,]+)")
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?:[Oo]ut of memory|OOM|oom)\b.*[Kk]ill(?:ed)? process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)"),
        "host_oom_killed",
    ),
    (re.compile(r"oom-kill:.*task=(?P<name>[^,]+),pid=(?P<pid>\d{1,10})"), "host_oom_killed"),
    (re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)"), "host_oom_killed"),
    (
        re.compile(r"(?P<name>[\w.:/-]{1,64})\[(?P<pid>\d{1,10})\]:? (?:segfault at|general prot|trap )"),
        "segfault",
    ),
    (re.compile(r"INFO: task (?P<name>\S+):(?P<pid>\d{1,10}) blocked for more than"), "driver_hang"),
    (re.compile(r"NVRM: API mismatch"), "driver_mismatch"),
    (re.compile(r"nvidia-nvswitch\S*: SXid .*(?:[Ff]atal|Link \d+)"), "nvlink_error"),
    (re.compile(r"NVRM: .*RmInitAdapter failed"), "gpu_lost"),
    (re.compile(r"NVRM:.*(?:fallen off the bus|GPU is lost)"), "gpu_lost"),
    (re.compile(r"\[Hardware Error\]|PCIe Bus Error: severity=Uncorrect"), "hardware_warning"),
)
_BUS = re.compile(r"NVRM:.*(?:GPU|PCI:)\s?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")


@dataclass(frozen=True)
class KernelEvent:
    """One thing the kernel said. `is_own`: it names this job (True), another process (False), or nobody (None)."""

    cause: str
    severity: str
    text: str
    time: float
    advice: str
    is_own: bool | None
    rows: int = 0  # progress rows when it came
    xid: int | None = None

    @property
    def weight(self) -> int:
        """Rank among root causes."""
        return WEIGHT.get(self.cause, DEFAULT_WEIGHT)


@dataclass
class Kernel:
    """State of the fold; changed in place."""

    context: Context
    events: deque[KernelEvent] = field(default_factory=lambda: deque(maxlen=64))
    last_bus: str = ""
    bus_ids: tuple[str, ...] = ()  # of the job's GPUs, as nvidia-smi names them

    def observe(self, text: str, time: float, rows: int, *, is_own: bool | None = None) -> KernelEvent | None:
        """Fold one kernel row in; returns the event it is, None for rows without meaning here.

        `is_own` tells whether the process that the row names is the job's, where somebody looked; else it is guessed.
        """
        bus = _BUS.search(text)
        self.last_bus = bus.group(1) if bus else self.last_bus
        event = self._xid(text, time, is_own) or self._form(text, time, is_own)
        if event is None:
            return None
        event = replace(event, rows=rows)
        self.events.append(event)
        return event

    def _xid(self, text: str, time: float, is_own: bool | None) -> KernelEvent | None:
        match = _XID.search(text)
        if match is None:
            return None
        bus, number, rest = match.groups()
        previous = _PREVIOUS.search(rest)
        code = previous.group(1) if previous else number
        known = _xids().get(code, _UNKNOWN_XID)
        pid, name = _PID.search(rest), _NAME.search(rest)
        own = self._is_own(int(pid.group(1)) if pid else None, name.group(1) if name else "", bus, is_own)
        said = f"Xid {code} on {bus}: {known['name']}".rstrip(": ")
        return KernelEvent(known["cause"], known["severity"], said, time, known["action"], own, xid=int(code))

    def _form(self, text: str, time: float, is_own: bool | None) -> KernelEvent | None:
        known = _known_form(text)
        return self._event(*known, time, is_own) if known else None

    def _event(self, match: re.Match[str], cause: str, time: float, is_own: bool | None) -> KernelEvent:
        groups, text = match.groupdict(), match.string
        pid, name = groups.get("pid"), groups.get("name") or ""
        own = self._is_own(int(pid) if pid else None, name, self.last_bus if "NVRM" in text else "", is_own)
        if cause == "driver_hang":
            own = True if name.startswith("nvidia") or own else None
        severity = "warning" if cause == "hardware_warning" else "fatal"
        return KernelEvent(cause, severity, _message(text), time, advice(cause), own)

    def _is_own(self, pid: int | None, name: str, bus: str, is_known: bool | None) -> bool | None:
        context = self.context
        known = context.gpu_bus_ids or self.bus_ids
        if known and bus_key(bus):
            return any(bus_key(bus) == bus_key(own) for own in known)
        if is_known is not None:
            return is_known
        if pid is None or context.pid is None:
            return False if pid is not None and name and not is_pythonic(name) else None
        if pid == context.pid:
            return True
        return abs(pid - context.pid) <= NEIGHBOUR_PIDS and is_pythonic(name)

    def root(self, rows: int, within: int, since: float = math.inf) -> KernelEvent | None:
        """The gravest fatal event that may concern this job; the earliest of equals.

        At most `within` rows of progress followed it, or it is no older than `since`.
        """
        counting = filter(self._counts, self.events)
        near = [event for event in counting if event.rows >= rows - within or event.time >= since]
        return max(near, key=lambda event: (event.is_own is True, event.weight), default=None)

    @staticmethod
    def _counts(event: KernelEvent) -> bool:
        return event.cause != "" and event.severity == "fatal" and event.is_own is not False

    def note(self) -> KernelEvent | None:
        """The newest event that asks for maintenance and leaves the job alone."""
        notes = [event for event in self.events if event.cause == "hardware_warning" and event.is_own is not False]
        return notes[-1] if notes else None


def named_pid(text: str) -> int | None:
    """The process that a kernel row names, in the numbers of the first pid namespace; None where it names none.

    >>> named_pid("Memory cgroup out of memory: Killed process 771 (python3) total-vm:1kB")
    771
    """
    xid = _XID.search(text)
    if xid:
        match = _PID.search(xid.group(3))
        return int(match.group(1)) if match else None
    known = _known_form(text)
    pid = known[0].groupdict().get("pid") if known else None
    return int(pid) if pid else None


def _known_form(text: str) -> tuple[re.Match[str], str] | None:
    """What a row that is no Xid says, and the cause that it stands for."""
    found = ((pattern.search(text), cause) for pattern, cause in _FORMS)
    return next(((match, cause) for match, cause in found if match), None)


@functools.cache
def _xids() -> dict[str, dict[str, Any]]:
    return dict(read_json("xid"))


def _message(text: str) -> str:
    return re.sub(r"^\s*\[[^\]]*\]\s*", "", text).strip()[:300]
