"""A client that is killed, or that freezes, leaves no process behind on any kind of target."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.processes import pids, stat
from opsctl.config import TargetConfig
from tests.conftest import SERVICES
from tests.support.place import Place
from tests.support.places import combinations
from tests.support.until import until

CALLER = """
import sys
from opsctl.config import TargetConfig
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
client = AgentClient(build_target("t", TargetConfig.model_validate_json(sys.argv[1])), operator="a")
print("calling", flush=True)
client.call("exec", {"argv": ["sh", "-c", 'sleep "$1" & exec sleep "$1"', "sh", sys.argv[2]]})
"""


@dataclass(frozen=True)
class Caller:
    """A client in the middle of a call, whose sleeps no other test sleeps."""

    process: subprocess.Popen[bytes]
    home: str
    nap: str

    def left(self) -> list[bytes]:
        """The command lines that this call runs on the target: the agent in `home`, and the two sleeps it holds."""
        return [b" ".join(words) for pid in pids() if self._is_ours(pid, words := _words(pid))]

    def _is_ours(self, pid: int, words: list[bytes]) -> bool:
        is_agent = len(words) > 1 and words[1].startswith(f"{self.home}/agent/".encode())
        is_ours = is_agent or words[:2] == [b"sleep", self.nap.encode()]
        return is_ours and (one := stat(pid)) is not None and one.state != "Z"


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended in between
        return []


@contextmanager
def calling(place: Place, host: Any) -> Iterator[Caller]:
    """A client whose call has begun."""
    with place.folder() as folder:
        home, nap = f"{folder}/a home", f"600.{secrets.randbelow(10**9):09d}"
        settings = TargetConfig.model_validate(place.settings(host=host, home=home))
        argv = [sys.executable, "-c", CALLER, settings.model_dump_json(), nap]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            caller = Caller(process, home, nap)
            until(lambda: len(caller.left()) == 3)
            yield caller
        finally:
            process.kill()
            process.send_signal(signal.SIGCONT)
            process.wait()
            process.stdout.close()


def test_a_client_that_is_killed_leaves_no_process(place: Place, host: Any) -> None:
    with calling(place, host) as caller:
        caller.process.kill()
        until(lambda: not caller.left())


def test_a_client_that_freezes_leaves_no_process(request: pytest.FixtureRequest) -> None:
    """It sends nothing at all, and the agent has to notice that. All kinds at once: each takes 15 s."""
    able = [one for one in combinations() if not any(SERVICES[mark.name]() for mark in one.marks)]
    with ExitStack() as stack:
        callers = []
        for host, kind in (one.values[0] for one in able):
            where = request.getfixturevalue("sshd").settings if host == "ssh" else host
            callers.append(stack.enter_context(calling(request.getfixturevalue(f"{kind}_place"), where)))
        for caller in callers:
            os.kill(caller.process.pid, signal.SIGSTOP)
        until(lambda: not any(caller.left() for caller in callers))
