"""Every kind of target answers the agent's calls alike, and no ended client leaves a process behind."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.agent.processes import pids, stat
from opsctl.errors import Disconnected, MissingTool, UsageError
from opsctl.target.client import AgentClient
from opsctl.target.container import NoContainer
from opsctl.target.host import LocalHost
from opsctl.target.target import Target
from tests.support.until import until


@pytest.fixture(params=["local"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, LocalHost(), NoContainer(), home=str(tmp_path / "a home, it's"), python=sys.executable)


@pytest.fixture
def client(target: Target) -> AgentClient:
    return AgentClient(target, operator="ana@desk")


def test_the_agent_is_pushed_once_and_answers(client: AgentClient, target: Target) -> None:
    first, second = client.call("probe"), client.call("probe")
    assert first["home"] == target.home == second["home"]
    assert len(list((Path(target.home) / "agent").iterdir())) == 1
    assert Path(target.home).stat().st_mode & 0o777 == 0o700


def test_a_damaged_agent_is_pushed_again(client: AgentClient, target: Target) -> None:
    client.call("probe")
    (pushed,) = (Path(target.home) / "agent").iterdir()
    pushed.write_bytes(b"import os; os.abort()")
    assert client.call("probe")["python"]


def test_a_home_below_the_users_own_is_found(target: Target, own_home: Path) -> None:
    below = Target("t", target.host, target.container, home="~/x y", python=target.python)
    assert AgentClient(below, operator="a").call("probe")["home"] == str(own_home / "x y")


def test_errors_come_back_as_what_they_are(client: AgentClient) -> None:
    with pytest.raises(UsageError, match="no verb 'nonsense'"):
        client.call("nonsense")


def _execute(client: AgentClient, *argv: str) -> tuple[bytes, bytes, dict[str, object]]:
    streams = {"stdout": b"", "stderr": b""}
    for message in client.stream("exec", {"argv": argv}):
        if message["type"] == "record":
            streams[message["kind"]] += base64.b64decode(message["record"])
        elif message["type"] == "result":
            return streams["stdout"], streams["stderr"], message["result"]
    raise AssertionError("no result")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=5))
def test_hostile_words_arrive_as_they_are(client: AgentClient, words: list[str]) -> None:
    printer = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    out, _, outcome = _execute(client, sys.executable, "-c", printer, *words)
    assert out == b"\0".join(word.encode() for word in words)
    assert outcome["code"] == 0


def test_a_megabyte_on_both_streams_arrives_whole(client: AgentClient) -> None:
    writer = "import sys; [s.buffer.write(bytes(range(256)) * 4096) for s in (sys.stderr, sys.stdout)]"
    out, err, _ = _execute(client, sys.executable, "-c", writer)
    assert out == err == bytes(range(256)) * 4096


@pytest.mark.parametrize(
    ("script", "kind", "number"), [("exit 42", "exited", 42), ("kill -9 $$", "killed", 9), ("exit 255", "exited", 255)]
)
def test_outcomes_are_told_apart(client: AgentClient, script: str, kind: str, number: int) -> None:
    _, _, outcome = _execute(client, "sh", "-c", script)
    assert (outcome["kind"], outcome["code"] or outcome["signal"]) == (kind, number)


def test_a_program_that_is_not_there_is_named(client: AgentClient) -> None:
    with pytest.raises(MissingTool, match="of-nowhere"):
        client.call("exec", {"argv": ["of-nowhere"]})


def test_no_python_there_is_a_missing_tool(target: Target) -> None:
    bare = Target("t", target.host, target.container, home=target.home, python="python-of-nowhere")
    with pytest.raises(MissingTool, match="python-of-nowhere"):
        AgentClient(bare, operator="a").call("probe")


def test_an_agent_that_dies_is_a_lost_link(target: Target, tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho worn out >&2\nexit 3\n")
    dying.chmod(0o755)
    with pytest.raises(Disconnected, match="worn out"):
        AgentClient(Target("t", target.host, target.container, home=target.home, python=str(dying)), operator="a").call(
            "probe"
        )


CALLER = """
import sys
from opsctl.target.client import AgentClient
from opsctl.target.container import NoContainer
from opsctl.target.host import LocalHost
from opsctl.target.target import Target
client = AgentClient(Target("t", LocalHost(), NoContainer(), home=sys.argv[1], python=sys.executable), operator="a")
print("calling", flush=True)
client.call("exec", {"argv": ["sh", "-c", "sleep 600.125 & exec sleep 600.125"]})
"""


def _left(home: str, caller: int) -> list[bytes]:
    """The command lines that this call left running: the agent in `home`, and the sleeps it holds."""
    found = []
    for pid in pids():
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_ours = words[:2] == [b"sleep", b"600.125"] or f"{home}/agent/".encode() in words[1 if len(words) > 1 else 0]
        if is_ours and pid != caller and (one := stat(pid)) and one.state != "Z":
            found.append(b" ".join(words))
    return found


@pytest.fixture
def caller(target: Target) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", CALLER, target.home], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.send_signal(signal.SIGCONT)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(("how", "within_s"), [(signal.SIGKILL, 5.0), (signal.SIGSTOP, 20.0)])
def test_a_client_that_is_gone_or_frozen_leaves_no_process(
    caller: subprocess.Popen[bytes], target: Target, how: signal.Signals, within_s: float
) -> None:
    """SIGKILL sends EOF; a stopped client sends nothing at all, and the agent has to notice that."""
    until(lambda: len(_left(target.home, caller.pid)) == 3, within_s=15)
    os.kill(caller.pid, how)
    until(lambda: not _left(target.home, caller.pid), within_s=within_s)
