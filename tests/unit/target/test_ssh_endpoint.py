"""What an SSH destination means, as OpenSSH reads it, and the words that say the same to its client."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings, client_options, parse_resolved, route

CONFIG = """\
Include inner
Host gpu
  HostName GPU.example.org
  Port 2222
  User ana
  IdentityFile ~/keys/gpu
  UserKnownHostsFile /known
  GlobalKnownHostsFile none
  ProxyJump gate
Host aliased
  HostKeyAlias cluster
  Port 2222
Host proxied
  HostName 10.0.0.7
  User bo
  ProxyCommand nc %h %p # %r %n
Host ring
  ProxyJump gnir
Host gnir
  ProxyJump third
Host third
  ProxyJump ring
"""


@pytest.fixture
def settings(tmp_path: Path) -> SshSettings:
    """Settings with an ssh_config of their own, which includes another."""
    (tmp_path / "inner").write_text("Host gate\n  User gatekeeper\n")
    (tmp_path / "config").write_text(CONFIG.replace("inner", str(tmp_path / "inner")))
    return SshSettings("gpu", ssh_config=str(tmp_path / "config"))


def test_a_name_of_ssh_config_is_resolved_over_its_hops(settings: SshSettings, own_home: Path) -> None:
    gate, gpu = (hop.endpoint for hop in route(settings))
    assert (gpu.label, gpu.host_key_name) == ("ana@gpu.example.org port 2222", "[gpu.example.org]:2222")
    assert gpu.identities == (str(own_home / "keys/gpu"),)
    assert gpu.known_hosts == ("/known",)
    assert (gate.user, gate.host, gate.port) == ("gatekeeper", "gate", 22)


def test_what_opsctl_yaml_says_comes_first(settings: SshSettings, tmp_path: Path) -> None:
    (tmp_path / "k").touch()
    said = dataclasses.replace(settings, destination="bo@gpu", port=22, key_file=str(tmp_path / "k"), jump="none")
    (hop,) = route(said)
    assert (hop.endpoint.user, hop.endpoint.port, hop.endpoint.jump) == ("bo", 22, "")
    assert hop.endpoint.identities[0] == str(tmp_path / "k")
    assert hop.endpoint.identities_only


def test_hops_are_taken_in_order(settings: SshSettings) -> None:
    said = dataclasses.replace(settings, jump="a@one:2201,two")
    hops = [hop.endpoint for hop in route(said)]
    assert [(hop.user, hop.host, hop.port) for hop in hops[:1]] == [("a", "one", 2201)]
    assert [hop.host for hop in hops] == ["one", "two", "gpu.example.org"]


def test_a_host_key_alias_has_no_port(settings: SshSettings) -> None:
    (hop,) = route(dataclasses.replace(settings, destination="aliased"))
    assert hop.endpoint.host_key_name == "cluster"


def test_tokens_of_a_proxy_command_are_filled_in(settings: SshSettings) -> None:
    (hop,) = route(dataclasses.replace(settings, destination="proxied"))
    assert hop.endpoint.proxy_command.startswith("nc 10.0.0.7 22")


def test_hops_in_a_ring_are_told(settings: SshSettings) -> None:
    with pytest.raises(ConfigError, match=r"hops|loop"):
        route(dataclasses.replace(settings, destination="ring"))


def test_a_key_that_is_not_there_is_named(settings: SshSettings) -> None:
    with pytest.raises(ConfigError, match="no file ~/nokey"):
        route(dataclasses.replace(settings, key_file="~/nokey"))


@pytest.mark.parametrize(("text", "said"), [("Bogus yes\n", "Bogus"), (None, "no file")])
def test_a_broken_ssh_config_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?i){said}"):
        route(SshSettings("x", ssh_config=str(path)))


def test_the_client_gets_our_rule_and_key_on_every_hop(settings: SshSettings, tmp_path: Path) -> None:
    (tmp_path / "k y").touch()
    said = dataclasses.replace(settings, key_file=str(tmp_path / "k y"), jump="one,two", host_keys="accept-new")
    options = client_options(route(said))
    (command,) = [word for word in options if word.startswith("ProxyCommand=")]
    for inner in (options, command, command[command.index("ProxyCommand=", 1) :]):
        assert "StrictHostKeyChecking=accept-new" in "".join(inner)
        assert "/k y" in "".join(inner)
    assert "[%%h]:%%p" in command  # the first hop's tokens pass the second one unread


def test_openssh_reads_the_interactive_words_as_meant(settings: SshSettings) -> None:
    words = SshHost(dataclasses.replace(settings, jump="none")).interactive_argv(("echo", "it's", "-x"))
    assert words[-2:] == ("gpu", "echo 'it'\"'\"'s' -x")
    shown = subprocess.run(("ssh", "-G", *words[1:]), capture_output=True, text=True, check=True).stdout
    assert {"stricthostkeychecking true", "connecttimeout 10"} <= set(shown.splitlines())


def test_a_host_costs_nothing_until_it_is_used() -> None:
    script = "import sys; import opsctl.ops.workspace; print('paramiko' in sys.modules, 'fabric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_none_in_what_ssh_prints_is_nothing() -> None:
    endpoint = parse_resolved("host a\nhostname b\nuser c\nport 22\nproxyjump none\nidentityagent none\n")
    assert (endpoint.jump, endpoint.agent_socket, endpoint.known_hosts) == ("", "", ())
