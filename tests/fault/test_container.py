"""A container that is stopped, paused, missing or restarted is told apart from a lost link and from a dead agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from opsctl.config import TargetConfig
from opsctl.errors import CommandFailed, ConfigError, ContainerMissing, Disconnected, MissingTool
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
from opsctl.target.command import Argv
from opsctl.target.host import LocalChannel, LocalHost
from opsctl.target.ssh import SshHost
from opsctl.target.target import Target
from tests.support.docker import docker_place
from tests.support.lxc import lxc_place, pct_place
from tests.support.place import USER, Place
from tests.support.places import combinations, together
from tests.support.until import until

PLACES = {"docker": docker_place, "lxc": lxc_place, "pct": pct_place}


CHOSEN = together(one for one in combinations(PLACES) if one.id != "ssh-pct")  # which is lxc once more
LOCAL = [one for one in CHOSEN if one.id.startswith("local-")]
Build = Callable[..., Target]


@pytest.fixture(scope="module", params=CHOSEN)
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The host and the container of these tests."""
    return request.param  # type: ignore[no-any-return]  # pytest's parameters have no type


@pytest.fixture(scope="module")
def own_place(combination: tuple[str, str]) -> Iterator[Place]:
    """A container that these tests alone may stop."""
    with PLACES[combination[1]]() as place:
        yield place


@pytest.fixture
def build(own_place: Place, host: Any) -> Iterator[Build]:
    """Targets at the host, with changes to the settings of the container there."""
    built: list[Target] = []

    def of(place: Place = own_place, **changes: Any) -> Target:
        settings = place.settings(host=host, home="/tmp/opsctl")
        built.append(build_target("t", TargetConfig.model_validate({**settings, **changes})))
        return built[-1]

    yield of
    for one in built:
        if isinstance(one.host, SshHost):
            one.host.close()


@pytest.fixture
def client(build: Build) -> AgentClient:
    return AgentClient(build(), operator="ana@desk")


@pytest.fixture
def stopped(own_place: Place) -> Iterator[None]:
    own_place.do("stop")
    yield
    own_place.do("start")


@pytest.mark.usefixtures("stopped")
def test_a_stopped_container_is_named_with_the_way_to_start_it(client: AgentClient) -> None:
    with pytest.raises(ContainerMissing, match="does not run") as caught:
        client.call("probe")
    assert caught.value.exit_code == 4
    assert client.target.container.label in caught.value.message
    assert "`opsctl container up -t t`" in caught.value.hint
    assert " ".join(client.target.container.start_argv) in caught.value.hint


def test_a_container_that_does_not_exist_is_named(build: Build, own_place: Place) -> None:
    kind = own_place.kind
    target = build(container={kind: 999_999_999 if kind == "pct" else "of-nowhere"})
    with pytest.raises(ContainerMissing, match="there is no container"):
        AgentClient(target, operator="a").call("probe")


def test_a_host_without_the_tool_is_told(build: Build) -> None:
    target = build(become=["env", "PATH=/nonexistent"])
    with pytest.raises(MissingTool, match=f"is not on {re.escape(target.host.label)}"):
        AgentClient(target, operator="a").call("probe")


def test_a_user_who_does_not_exist_is_named(build: Build, own_place: Place) -> None:
    with pytest.raises(ConfigError, match=r"targets.t.container.user.*of-nowhere") as caught:
        AgentClient(build(own_place.as_user("of-nowhere")), operator="a").call("probe")
    assert "useradd -m of-nowhere" in caught.value.hint


def test_a_home_that_the_user_may_not_make_is_told(build: Build, own_place: Place) -> None:
    with pytest.raises(CommandFailed, match="Permission denied") as caught:
        AgentClient(build(own_place.as_user(USER), home="/opsctl"), operator="a").call("probe")
    assert "set `home:`" in caught.value.hint


def _begun(client: AgentClient) -> Generator[dict[str, Any], None, None]:
    """A call in the middle: its command has printed a row and sleeps on."""
    messages = client.stream("exec", {"argv": ["sh", "-c", "echo begun; exec sleep 600"]})
    until(lambda: next(messages)["type"] == "record")
    return messages


@pytest.mark.parametrize(("action", "undo", "said"), [("stop", "start", "does not run"), ("pause", "resume", "paused")])
def test_a_container_that_goes_in_mid_call_is_told(
    own_place: Place, client: AgentClient, action: str, undo: str, said: str
) -> None:
    # Proxmox calls a paused container running
    error, said = (
        (Disconnected, "no sign of life") if (own_place.kind, action) == ("pct", "pause") else (ContainerMissing, said)
    )
    with closing(_begun(client)) as messages:
        own_place.do(action)
        try:
            with pytest.raises(error, match=said):
                next(messages)
        finally:
            own_place.do(undo)
    assert client.call("probe")["python"]


def test_a_container_restarted_in_mid_call_is_a_call_that_broke_off(own_place: Place, client: AgentClient) -> None:
    with closing(_begun(client)) as messages:
        own_place.do("restart")
        with pytest.raises(Disconnected):
            next(messages)
    assert client.call("probe")["python"]


@dataclass(frozen=True)
class CountingHost(LocalHost):
    """This machine, with a list of what was started on it."""

    started: list[Argv] = field(default_factory=list)

    def start(self, argv: Argv) -> LocalChannel:
        self.started.append(argv)
        return super().start(argv)


@pytest.mark.parametrize("combination", LOCAL, indirect=True, scope="module")
def test_a_good_call_asks_for_no_state(build: Build) -> None:
    host, target = CountingHost(), build()
    counted = Target("t", host, target.container, home=target.home, become=target.become)
    AgentClient(counted, operator="a").call("probe")
    assert len(host.started) == 1
