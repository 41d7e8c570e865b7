"""The recorder's bounded children: heard, told, and missed aloud only once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.agent.recorder import notify
from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.members import Members
from opsctl.agent.recorder.notify import Notifier
from opsctl.records.run import Notify
from opsctl.records.verdict import Verdict


@pytest.fixture
def said() -> list[str]:
    """What is complained of."""
    return []


@pytest.fixture
def loop(said: list[str]) -> Loop:
    """A loop that is not running."""
    return Loop(said.append)


def _reap(helper: Helper) -> None:
    assert helper.pid is not None
    helper.ended(os.waitpid(helper.pid, 0)[1])


def test_what_a_child_printed_is_handed_on_once_it_has_ended(loop: Loop, said: list[str]) -> None:
    helper, heard = Helper(loop, limit_s=60.0), list[str]()
    assert helper.start(("echo", "stacks"), heard.append)
    assert not helper.start(("echo", "second"), heard.append)
    _reap(helper)
    assert (heard, said, helper.pid) == (["stacks\n"], [], None)


def test_a_child_that_cannot_be_started_is_missed_aloud_and_once(loop: Loop, said: list[str]) -> None:
    helper = Helper(loop, limit_s=60.0)
    for _ in range(3):
        assert not helper.start(("/no/such/program",), said.append)
    assert said == ["/no/such/program cannot be started: No such file or directory"]


def test_a_message_waits_until_somebody_can_tell_it(loop: Loop, said: list[str], tmp_path: Path) -> None:
    program = tmp_path / "tell"
    notifier = Notifier(loop, Notify(command=("true",)), (str(program),), lambda: True)
    notifier.tell({"verdict": Verdict("crashed").verdict})
    assert said
    assert not notifier.is_idle
    program.write_text(f'#!/bin/sh\ncat >> "{tmp_path}/told"\n')
    program.chmod(0o755)
    notifier.tell({"verdict": "finished"})
    _reap(notifier.helper)
    assert '"crashed"' in (tmp_path / "told").read_text()
    _reap(notifier.helper)
    assert '"finished"' in (tmp_path / "told").read_text()
    assert notifier.is_idle


def test_the_end_waits_for_messages_but_not_for_ever(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier, ends = Notifier(loop, Notify(command=("true",)), ("sh", "-c", "cat"), lambda: True), list[str]()
    notifier.drain(lambda: ends.append("nothing to say"))
    assert ends == ["nothing to say"]
    notifier.tell({"verdict": "finished"})
    loop.later(0.05, lambda: _reap(notifier.helper))
    notifier.drain(loop.stop)
    loop.run()
    assert notifier.is_idle
    notifier.tell({"verdict": "finished"})
    monkeypatch.setattr(notify, "LAST_S", 0.0)
    notifier.drain(lambda: ends.append("late"))
    _reap(notifier.helper)
    assert ends == ["nothing to say", "late"]


def test_a_process_of_the_run_stays_its_own_when_it_is_gone() -> None:
    """The kernel's row about a process may be read after its end."""
    members = Members("run-of-this-test")
    argv = (sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()")
    variables = {**os.environ, "OPSCTL_RUN_ID": "run-of-this-test"}
    child = subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert members.carries(child.pid) is None
    members.sample(os.getpid())
    assert members.carries(child.pid) is True
    child.communicate()
    members.sample(os.getpid())
    assert members.carries(child.pid) is True
    assert members.carries(1) is False
