"""Kernel rows that a container cannot read: asked of its host, and handed to the run's recorder. Never prints.

Only what detection knows the meaning of is passed on; where the host does not let us read, that is a finding.
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from opsctl.detect.context import Context
from opsctl.detect.kernel import FIRST_PID_NAMESPACE, Kernel, named_pid
from opsctl.errors import OpsctlError
from opsctl.records.run import RunRecord
from opsctl.records.verdict import Finding
from opsctl.target.client import AgentClient
from opsctl.target.target import Target

PERIOD_S = 2.0
LIMIT_S = 10.0
NEWEST_ROWS = 300
# constant: the host's clocks, then its newest kernel rows, by whichever tool this user may use
_SCRIPT = (
    'date +%s; cat /proc/uptime; if rows=$(dmesg 2>/dev/null); then printf "%s\\n" "$rows" | tail -n "$1"; '
    'else exec journalctl -k -q -n "$1" -o short-monotonic --no-pager; fi'
)
# constant: the host's pid namespace; then the pid of each process that we may look at, in the namespace $1 its own, too
_PIDS_SCRIPT = (
    "readlink /proc/self/ns/pid; ls -l /proc/[0-9]*/ns/pid 2>/dev/null | "
    'sed -n "s|.*/proc/\\([0-9]*\\)/ns/pid -> \\(.*\\)|\\1 \\2|p" | while read -r pid space; do '
    'if [ "$space" != "$1" ]; then echo "$pid"; else '
    'sed -n "s/^NSpid:.*[^0-9]\\([0-9]*\\)$/$pid \\1/p" "/proc/$pid/status" 2>/dev/null; fi; done'
)
MAX_PIDS = 65536
_SEEN = re.compile(r"(\d{1,10})(?: (\d{1,10}))?")
_STAMPED = re.compile(r"^\[\s*(\d+\.\d+)\]\s?(.*)$")


@dataclass
class Pids:
    """Which processes of the host are in the run's container, and as what it numbers them; changed in place."""

    numbers: dict[int, int | None] = field(default_factory=dict)  # host's pid -> that inside; None: another's
    since: float = math.inf  # the host's time of the first look that showed any

    def look(self, rows: list[str], now: float) -> None:
        """Fold in what the script said: nothing, where the host is itself a container or lets nobody look."""
        if len(rows) < 2 or rows[0] != FIRST_PID_NAMESPACE:
            return
        if len(self.numbers) > MAX_PIDS:
            self.numbers.clear()
        found = (_SEEN.fullmatch(row) for row in rows[1:])
        self.numbers.update((int(match[1]), int(match[2]) if match[2] else None) for match in found if match)
        self.since = min(self.since, now)

    def of(self, text: str, moment: float) -> dict[str, Any]:
        """A kernel row of that moment as the recorder reads it, with the process that it names.

        One that was there at a look and not in the container is another's; one that came and went unseen is unknown.
        """
        pid = named_pid(text)
        inner = None if pid is None else self.numbers.get(pid)
        is_other = inner is None and pid in self.numbers and moment >= self.since
        return {"text": text, "pid": inner, "is_own": False if is_other else None}


class HostKernel:
    """A thread that looks at the host's kernel log while somebody watches a run in a container there."""

    def __init__(self, client: AgentClient, run: RunRecord) -> None:
        self._client = client
        self._run = run
        self._seen: set[str] = set()
        self._pids = Pids()
        self._has_read = False
        self._stop = threading.Event()
        self.findings: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="host-kernel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more; a look that is under way ends by itself."""
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OpsctlError):  # a lost link: the watch itself tells of it
                if not self._look():
                    return
            self._stop.wait(PERIOD_S)

    def _look(self) -> bool:
        """Pass on what is new; says whether looking again has any sense."""
        rows, problem = newest_rows(self._client.target)
        if problem and self._has_read:
            return True  # a host in trouble: the next look may have better luck
        if problem:
            self.findings.put(unreadable(self._client.target.host.label, problem))
            return False
        self._has_read = True
        boot = boot_time(rows)
        new = [text for text in news(rows, since=self._run.created) if text not in self._seen]
        if new and not self._stop.is_set():
            handed = [self._pids.of(text, boot + stamp(text)) for text in new]
            self._client.call("run-kernel", {"run": self._run.run_id, "rows": handed})
            self._seen.update(new)
        if self._run.pid_namespace:
            self._pids.look(pids_in(self._client.target, self._run.pid_namespace), float(rows[0]))
        return True


def pids_in(target: Target, namespace: str) -> list[str]:
    """What the host says of the processes in a pid namespace. Raises TargetError, TimedOut or MissingTool."""
    argv = ("sh", "-c", _PIDS_SCRIPT, "sh", namespace)
    return target.ask_host(argv, timeout_s=LIMIT_S).output.splitlines()


def newest_rows(target: Target) -> tuple[list[str], str]:
    """`date`, uptime and the newest kernel rows of a target's host, and why none can be read.

    Raises TargetError, TimedOut or MissingTool.
    """
    answer = target.ask_host(("sh", "-c", _SCRIPT, "sh", str(NEWEST_ROWS)), timeout_s=LIMIT_S)
    rows = answer.output.splitlines()
    if answer.outcome.code or len(rows) <= 2:
        said = answer.errors.strip().splitlines()[-1:]
        return rows, said[0] if said else "neither dmesg nor journalctl shows anything to this user"
    return rows, ""


def news(rows: list[str], *, since: float) -> list[str]:
    """The rows of `date`, uptime and kernel log that mean something to detection and came after `since`.

    >>> news(["1000", "500.0 1.0", "[ 499.5] NVRM: Xid (PCI:0000:b3:00): 79, x"], since=999.0)
    ['[ 499.5] NVRM: Xid (PCI:0000:b3:00): 79, x']
    """
    boot = boot_time(rows)
    recent = [row for row in rows[2:] if boot + stamp(row) >= since - 1.0]
    kernel = Kernel(Context())
    return [row for row in recent if kernel.observe(row, 0.0, 0) is not None]


def boot_time(rows: list[str]) -> float:
    """When the host started, by its own clock: from `date` and uptime."""
    return float(rows[0]) - float(rows[1].split()[0])


def stamp(row: str) -> float:
    """A kernel row's seconds since the start of its host; long before it for a row without."""
    match = _STAMPED.match(row)
    return float(match.group(1)) if match else -math.inf


def unreadable(host: str, problem: str) -> Finding:
    """What is said where nobody lets us read."""
    return Finding(
        time=round(time.time(), 3),
        cause="telemetry_unavailable",
        severity="info",
        summary=f"the kernel log is readable neither in the container nor on {host}: Xid and OOM rows are not seen",
        evidence=(problem,),
        advice="let this user read it there: group adm or systemd-journal, or `become: [sudo, -n]` of the target",
    )
