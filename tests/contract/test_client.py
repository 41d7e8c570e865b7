"""Every kind of target answers the agent's calls alike, and no ended client leaves a process behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from opsctl.agent.processes import pids, stat
from opsctl.config import TargetConfig
from opsctl.errors import Disconnected, MissingTool, UsageError
from opsctl.target.client import AgentClient
from opsctl.target.target import Target
from tests.support.place import Place
from tests.support.until import until


def test_the_agent_is_pushed_once_and_answers(client: AgentClient, place: Place, home: str) -> None:
    first, second = client.call("probe"), client.call("probe")
    assert first["home"] == home == second["home"]
    assert len(list(place.outside(f"{home}/agent").iterdir())) == 1
    assert place.outside(home).stat().st_mode & 0o777 == 0o700


def test_a_damaged_agent_is_pushed_again(client: AgentClient, place: Place, home: str) -> None:
    client.call("probe")
    (pushed,) = place.outside(f"{home}/agent").iterdir()
    pushed.write_bytes(b"import os; os.abort()")
    assert client.call("probe")["python"]


def test_a_home_below_the_users_own_is_found(target: Target, place: Place) -> None:
    name = f"x {secrets.token_hex(4)}"
    found = AgentClient(replace(target, home=f"~/{name}"), operator="a").call("probe")["home"]
    assert found.endswith(f"/{name}")
    assert place.outside(found).is_dir()
    shutil.rmtree(place.outside(found))


def test_errors_come_back_as_what_they_are(client: AgentClient) -> None:
    with pytest.raises(UsageError, match="no verb 'nonsense'"):
        client.call("nonsense")


def _execute(client: AgentClient, *argv: str) -> tuple[bytes, bytes, dict[str, object]]:
    streams = {"stdout": b"", "stderr": b""}
    for message in client.stream("exec", {"argv": argv}):
        if message["type"] == "record":
            streams[message["kind"]] += message["record"]
        elif message["type"] == "result":
            return streams["stdout"], streams["stderr"], message["result"]
    raise AssertionError("no result")


@examples(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12), max_size=5))
def test_hostile_words_arrive_as_they_are(client: AgentClient, words: list[str]) -> None:
    printer = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    out, _, outcome = _execute(client, client.target.python, "-c", printer, *words)
    assert out == b"\0".join(word.encode() for word in words)
    assert outcome["code"] == 0


def test_a_megabyte_on_both_streams_arrives_whole(client: AgentClient) -> None:
    writer = "import sys; [s.buffer.write(bytes(range(256)) * 4096) for s in (sys.stderr, sys.stdout)]"
    out, err, _ = _execute(client, client.target.python, "-c", writer)
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
    with pytest.raises(MissingTool, match="python-of-nowhere"):
        AgentClient(replace(target, python="python-of-nowhere"), operator="a").call("probe")


def test_an_agent_that_dies_is_a_lost_link(target: Target, place: Place, home: str) -> None:
    dying = f"{home[: home.rindex('/')]}/python"
    place.outside(dying).write_text("#!/bin/sh\necho worn out >&2\nexit 3\n")
    place.outside(dying).chmod(0o755)
    with pytest.raises(Disconnected, match="worn out"):
        AgentClient(replace(target, python=dying), operator="a").call("probe")


CALLER = """
import sys
from opsctl.config import TargetConfig
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
client = AgentClient(build_target("t", TargetConfig.model_validate_json(sys.argv[1])), operator="a")
print("calling", flush=True)
client.call("exec", {"argv": ["sh", "-c", 'sleep "$1" & exec sleep "$1"', "sh", sys.argv[2]]})
"""


def _left(home: str, nap: str, caller: int) -> list[bytes]:
    """The command lines that this call left running: the agent in `home`, and the sleeps it holds."""
    found = []
    for pid in pids():
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_agent = len(words) > 1 and words[1].startswith(f"{home}/agent/".encode())
        is_ours = is_agent or words[:2] == [b"sleep", nap.encode()]
        if is_ours and pid != caller and (one := stat(pid)) and one.state != "Z":
            found.append(b" ".join(words))
    return found


@pytest.fixture
def nap() -> str:
    """The seconds of a sleep that no other test run sleeps."""
    return f"600.{secrets.randbelow(10**9):09d}"


@pytest.fixture
def caller(settings: TargetConfig, nap: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", CALLER, settings.model_dump_json(), nap]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.send_signal(signal.SIGCONT)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize(("how", "within_s"), [(signal.SIGKILL, 5.0), (signal.SIGSTOP, 20.0)])
def test_a_client_that_is_gone_or_frozen_leaves_no_process(
    caller: subprocess.Popen[bytes], home: str, nap: str, how: signal.Signals, within_s: float
) -> None:
    """SIGKILL sends EOF; a stopped client sends nothing at all, and the agent has to notice that."""
    until(lambda: len(_left(home, nap, caller.pid)) == 3, within_s=15)
    os.kill(caller.pid, how)
    until(lambda: not _left(home, nap, caller.pid), within_s=within_s)
