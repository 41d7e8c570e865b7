"""Every kind of target answers the agent's calls alike."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from opsctl.errors import Disconnected, MissingTool, UsageError
from opsctl.target.client import AgentClient
from opsctl.target.target import Target
from tests.support.place import Place


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
