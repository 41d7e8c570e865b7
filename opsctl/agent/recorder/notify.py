"""Tells people and monitors: a queue in the recorder, and a bounded child that does the talking."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.loop import Loop
from opsctl.records.call import to_json
from opsctl.records.run import Notify, RunRecord
from opsctl.records.verdict import Verdict

LIMIT_S = 20.0
HEARTBEAT_PERIOD_S = 60.0
MAX_WAITING = 32
LAST_S = 10.0  # how long the end waits for messages that are on their way
AGAIN_S = 1.0  # after which one that could not be started is tried again


def news(run: RunRecord, verdict: Verdict, before: Verdict, now: float) -> dict[str, Any]:
    """The message about a verdict that changed."""
    return {
        "run_id": run.run_id,
        "name": run.spec.name,
        "operator": run.spec.operator,
        "time": now,
        "before": before.verdict,
        "verdict": to_json(verdict),
    }


class Notifier:
    """Lets one child at a time talk; the oldest of too many messages is dropped."""

    def __init__(self, loop: Loop, policy: Notify, agent_argv: tuple[str, ...], is_well: Callable[[], bool]) -> None:
        self._loop = loop
        self._policy = policy
        self._argv = (*agent_argv, "job", "notify")
        self._waiting: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_WAITING)
        self._is_well = is_well
        self._is_tried_again = False
        self.helper = Helper(loop, limit_s=LIMIT_S, is_heard=False)
        if policy.heartbeat:
            loop.later(0.0, self._beat)
            loop.every(HEARTBEAT_PERIOD_S, self._beat)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to say."""
        return self.helper.pid is None and not self._waiting

    def tell(self, message: dict[str, Any]) -> None:
        """Pass a message on to the command and the webhook."""
        if self._policy.command or self._policy.webhook:
            self._waiting.append({"notify": to_json(self._policy), "message": message})
            self._next()

    def drain(self, then: Callable[[], None]) -> None:
        """Go on once nothing is left to say, or after a while."""
        self._drain(then, time.monotonic() + LAST_S)

    def _drain(self, then: Callable[[], None], deadline: float) -> None:
        if self.is_idle or time.monotonic() >= deadline:
            then()
        else:
            self._loop.later(0.05, lambda: self._drain(then, deadline))

    def _beat(self) -> None:
        if not self._is_well():
            return  # a monitor that hears nothing raises the alarm, as it does when the host is dead
        self._waiting.append({"notify": {"heartbeat": self._policy.heartbeat}, "message": None})
        self._next()

    def _next(self) -> None:
        if self.helper.pid is not None or not self._waiting:
            return
        if self.helper.start(self._argv, lambda text: self._next(), told=json.dumps(self._waiting[0]).encode()):
            self._waiting.popleft()
        elif not self._is_tried_again:
            self._is_tried_again = True
            self._loop.later(AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        self._is_tried_again = False
        self._next()


def deliver(arguments: list[str]) -> int:
    """The child: reads one message from stdin and delivers it; every way is tried, whatever the others did."""
    order = json.load(sys.stdin)
    notify, body = order["notify"], json.dumps(order["message"]).encode()
    failures = 0
    if notify.get("command"):
        failures += _failed(lambda: subprocess.run(notify["command"], input=body, timeout=LIMIT_S / 2, check=True))
    if notify.get("webhook"):
        failures += _failed(lambda: _request(notify["webhook"], body))
    if notify.get("heartbeat") and order["message"] is None:
        failures += _failed(lambda: _request(notify["heartbeat"], None))
    return failures


def _failed(deliver_one: Any) -> bool:
    try:
        deliver_one()
    except (OSError, subprocess.SubprocessError):  # an unreachable monitor is the monitor's news, not the run's
        return True
    return False


def _request(url: str, body: bytes | None) -> None:
    import urllib.request  # 15 MiB with ssl: only this short-lived child pays for it

    headers = {"Content-Type": "application/json", "User-Agent": "opsctl"}
    # the configuration lets only https through
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=LIMIT_S / 2) as answer:
        answer.read(1 << 16)
