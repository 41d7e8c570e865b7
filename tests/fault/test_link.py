"""Faults of the SSH link: silence, cuts, delays, a restarted sshd. Nothing hangs, nothing is left on the target."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.config import TargetConfig
from opsctl.errors import Disconnected, TargetError, Unreachable
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
from tests.support.left import agents, sleeping, unique_nap
from tests.support.place import Place
from tests.support.proxy import LinkProxy
from tests.support.sshd import Sshd, start_sshd
from tests.support.until import until

pytestmark = pytest.mark.ssh

NOTICED_WITHIN_S = 15.0  # 5 s of silence, on a busy machine


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "far home")


@pytest.fixture
def client(far_sshd: Sshd, proxy: LinkProxy, home: str) -> Iterator[AgentClient]:
    settings = {"host": {**far_sshd.settings, "connect_timeout_s": 4.0}, "home": home, "python": sys.executable}
    target = build_target("t", TargetConfig.model_validate(settings))
    yield AgentClient(target, operator="ana@desk")
    target.host.close()  # type: ignore[attr-defined]  # an SshHost


@pytest.fixture
def nap() -> str:
    return unique_nap()


@contextlib.contextmanager
def _call(client: AgentClient, nap: str) -> Iterator[Iterator[object]]:
    """A call in the middle: its command, and a child in a session of its own, sleep on."""
    script = 'setsid sleep "$1" & echo begun; exec sleep "$1"'
    stream = client.stream("exec", {"argv": ["sh", "-c", script, "sh", nap]})
    with contextlib.closing(stream):
        assert next(stream)["record"] == b"begun\n"
        until(lambda: len(sleeping(nap)) == 2)
        yield stream


@pytest.mark.parametrize("fault", ["swallow", "freeze"])
def test_a_silent_link_is_noticed_in_time(
    client: AgentClient, proxy: LinkProxy, nap: str, home: str, fault: str
) -> None:
    with _call(client, nap) as stream:
        getattr(proxy, fault)()
        start = time.monotonic()
        with pytest.raises(Disconnected):
            next(stream)
    assert time.monotonic() - start < NOTICED_WITHIN_S
    # the agent hears nothing either; once its own limit is over it takes its children along
    until(lambda: not sleeping(nap) and not agents(home))


@pytest.mark.parametrize("fault", ["swallow", "freeze"])
def test_an_upload_into_a_silent_link_ends_too(client: AgentClient, proxy: LinkProxy, fault: str) -> None:
    def endless() -> Iterator[bytes]:
        yield b"\0" * 1_000_000
        getattr(proxy, fault)()
        while True:
            yield b"\0" * 1_000_000

    client.call("probe")
    start = time.monotonic()
    with pytest.raises(Disconnected):
        for _ in client.stream("exec", {"argv": ["cat"], "stdin": True}, uploads=endless()):
            pass
    assert time.monotonic() - start < NOTICED_WITHIN_S


def test_a_cut_is_noticed_at_once_and_leaves_nothing(
    client: AgentClient, proxy: LinkProxy, nap: str, home: str
) -> None:
    with _call(client, nap) as stream:
        start = time.monotonic()
        proxy.cut()
        with pytest.raises(Disconnected, match="is lost"):
            next(stream)
        assert time.monotonic() - start < 4.5  # sooner than silence would tell
    until(lambda: not sleeping(nap) and not agents(home))
    assert client.call("probe")["home"] == home


def test_a_link_that_died_between_calls_is_replaced(client: AgentClient, proxy: LinkProxy) -> None:
    client.call("probe")
    proxy.cut()
    assert client.call("probe")["python"]
    assert proxy.num_links == 2


def test_a_link_that_fell_silent_between_calls_is_replaced(client: AgentClient, proxy: LinkProxy) -> None:
    """As behind a firewall that forgets idle connections: new ones pass."""
    client.call("probe")
    proxy.swallow(new_links_too=False)
    assert client.call("probe")["python"]
    assert proxy.num_links == 2


def test_a_call_over_a_dead_link_ends_in_an_error_in_time(client: AgentClient, proxy: LinkProxy) -> None:
    client.call("probe")
    proxy.freeze()
    start = time.monotonic()
    with pytest.raises(TargetError):
        client.call("probe")
    assert time.monotonic() - start < 20.0  # the old link's silence, then a new one's connect_timeout_s
    proxy.heal()
    assert client.call("probe")["python"]


def test_a_slow_link_is_no_silent_one(client: AgentClient, proxy: LinkProxy) -> None:
    client.call("probe")
    proxy.delay_s = 0.2
    assert client.call("probe")["python"]


def test_a_full_sshd_is_asked_again(client: AgentClient, proxy: LinkProxy) -> None:
    """With too many logins at once sshd closes some connections before it says a word."""
    proxy.num_to_turn_away = 3
    assert client.call("probe")["python"]
    assert proxy.num_links == 1


def test_an_sshd_that_stays_full_is_told(client: AgentClient, proxy: LinkProxy) -> None:
    proxy.num_to_turn_away = 1000
    with pytest.raises(Unreachable, match="before it said a word"):
        client.call("probe")
    assert 990 < proxy.num_to_turn_away < 999


def test_an_sshd_that_restarts_costs_one_call(tmp_path: Path, home: str, nap: str) -> None:
    server = start_sshd(tmp_path / "server")
    settings = {"host": server.settings, "home": home, "python": sys.executable}
    client = AgentClient(build_target("t", TargetConfig.model_validate(settings)), operator="a")
    with _call(client, nap) as stream:
        server.end()
        with pytest.raises(Disconnected):
            next(stream)
        with pytest.raises(Unreachable, match="refused"):
            client.call("probe")
    server = start_sshd(tmp_path / "server", port=server.port)
    assert client.call("probe")["python"]
    client.target.host.close()  # type: ignore[attr-defined]  # an SshHost
    server.end()


@pytest.mark.docker
def test_a_silent_link_is_not_blamed_on_the_container(
    docker_place: Place, far_sshd: Sshd, proxy: LinkProxy, nap: str
) -> None:
    """Nobody is asked about the container while the host itself is out of reach."""
    with docker_place.folder() as folder:
        host = {**far_sshd.settings, "connect_timeout_s": 4.0}
        settings = TargetConfig.model_validate(docker_place.settings(host=host, home=f"{folder}/home"))
        client = AgentClient(build_target("t", settings), operator="a")
        with _call(client, nap) as stream:
            proxy.swallow()
            start = time.monotonic()
            with pytest.raises(Disconnected, match="is lost"):
                next(stream)
            assert time.monotonic() - start < NOTICED_WITHIN_S
        until(lambda: not sleeping(nap))
        client.target.host.close()  # type: ignore[attr-defined]  # an SshHost
