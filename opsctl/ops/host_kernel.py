"""Kernel rows that a container cannot read: asked of its host, and handed to the run's recorder. Never prints.

Only what detection knows the meaning of is passed on; where the host does not let us read, that is a finding.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time

from opsctl.detect.context import Context
from opsctl.detect.kernel import Kernel
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
_STAMPED = re.compile(r"^\[\s*(\d+\.\d+)\]\s?(.*)$")


class HostKernel:
    """A thread that looks at the host's kernel log while somebody watches a run in a container there."""

    def __init__(self, client: AgentClient, run: RunRecord) -> None:
        self._client = client
        self._run = run
        self._seen: set[str] = set()
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
        if problem:
            self.findings.put(unreadable(self._client.target.host.label, problem))
            return False
        new = [text for text in news(rows, since=self._run.created) if text not in self._seen]
        if new and not self._stop.is_set():
            self._client.call("run-kernel", {"run": self._run.run_id, "rows": new})
            self._seen.update(new)
        return True


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
    boot = float(rows[0]) - float(rows[1].split()[0])
    stamped = ((_STAMPED.match(row), row) for row in rows[2:])
    recent = [row for match, row in stamped if match and boot + float(match.group(1)) >= since - 1.0]
    kernel = Kernel(Context())
    return [row for row in recent if kernel.observe(row, 0.0, 0) is not None]


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
