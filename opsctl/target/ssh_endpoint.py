"""What an SSH destination means: opsctl.yaml's settings, completed by OpenSSH's own reading of ssh_config.

`ssh -G` is asked, so that Include, Match and tokens mean here what they mean to `ssh`. Opens no connection.
"""

from __future__ import annotations

import dataclasses
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import ConfigError, MissingTool
from opsctl.target.command import Argv, shell_words

DEFAULT_PORT = 22
_ASK_LIMIT_S = 30.0
_MAX_HOPS = 8


@dataclass(frozen=True)
class SshSettings:
    """How opsctl.yaml describes an SSH host; what is None is left to ssh_config."""

    destination: str  # host, user@host, or a name that ssh_config knows
    port: int | None = None
    key_file: str | None = None
    jump: str | None = None  # hops before it, separated by commas; "none" for none whatever ssh_config says
    ssh_config: str | None = None  # instead of ~/.ssh/config and the system's
    host_keys: str = "strict"
    connect_timeout_s: float = 10.0


@dataclass(frozen=True)
class Endpoint:
    """Where a connection goes, and by which keys both sides are known."""

    host: str
    port: int
    user: str
    host_key_name: str  # the name in known_hosts
    known_hosts: tuple[str, ...]  # the files, the user's first
    hashes_names: bool
    identities: tuple[str, ...]  # key files, in the order to try
    identities_only: bool
    agent_socket: str  # "" for no agent; SSH_AUTH_SOCK for the usual one
    jump: str  # "" for none
    proxy_command: str  # "" for none

    @property
    def label(self) -> str:
        """How messages name it.

        >>> parse_resolved("host a\\nhostname b\\nuser c\\nport 2222\\n").label
        'c@b port 2222'
        """
        return f"{self.user}@{self.host} port {self.port}"


@dataclass(frozen=True)
class Hop:
    """One host on the way, the last one being the host itself."""

    settings: SshSettings
    endpoint: Endpoint


def base_options(settings: SshSettings) -> Argv:
    """The options of the OpenSSH client that say the same as these settings, hops and host keys apart."""
    options: list[str] = []
    if settings.ssh_config is not None:
        options += ["-F", str(Path(settings.ssh_config).expanduser())]
    if settings.port is not None:
        options += ["-p", str(settings.port)]
    if settings.key_file is not None:
        options += ["-i", str(Path(settings.key_file).expanduser()), "-o", "IdentitiesOnly=yes"]
    return tuple(options)


def parse_resolved(text: str) -> Endpoint:
    """The endpoint in what `ssh -G` prints."""
    values: dict[str, str] = {}
    identities = []
    for row in text.splitlines():
        key, _, value = row.partition(" ")
        if key == "identityfile":
            identities.append(str(Path(value).expanduser()))
        values.setdefault(key, "" if value == "none" else value)
    host, port = values["hostname"].lower(), int(values["port"])
    files = f"{values.get('userknownhostsfile', '')} {values.get('globalknownhostsfile', '')}".split()
    proxy_command = values.get("proxycommand", "")
    return Endpoint(
        host=host,
        port=port,
        user=values["user"],
        host_key_name=values.get("hostkeyalias") or known_name(host, port),
        known_hosts=tuple(str(Path(name).expanduser()) for name in files if name != "none"),
        hashes_names=values.get("hashknownhosts") == "yes",
        identities=tuple(identities),
        identities_only=values.get("identitiesonly") == "yes",
        agent_socket=values.get("identityagent", "SSH_AUTH_SOCK"),
        jump=values.get("proxyjump", ""),
        proxy_command=_expand(proxy_command, values) if proxy_command else "",
    )


def _expand(command: str, values: dict[str, str]) -> str:
    tokens = {"%h": values["hostname"], "%p": values["port"], "%r": values["user"], "%n": values["host"]}
    for token, value in tokens.items():
        command = command.replace(token, value)
    return command


def known_name(host: str, port: int) -> str:
    """How known_hosts calls a host.

    >>> known_name("gpu.example", 22), known_name("gpu.example", 2222)
    ('gpu.example', '[gpu.example]:2222')
    """
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def resolve(settings: SshSettings) -> Endpoint:
    """Where these settings lead; raises ConfigError where ssh_config is broken, MissingTool without OpenSSH."""
    # `ssh -G` leaves a key that is not there out, and we would go on with another one
    for name in ("ssh_config", "key_file"):
        path = getattr(settings, name)
        if path is not None and not Path(path).expanduser().is_file():
            raise ConfigError(f"there is no file {path}", hint=f"correct `{name}:` of the target's host")
    argv = ("ssh", *base_options(settings), "-G", "-T", "--", settings.destination)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_LIMIT_S)
    except FileNotFoundError:
        raise MissingTool("no `ssh` on this machine", hint="install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"`{shell_words(argv)}` does not end", hint="look for a slow `Match exec` in ssh_config"
        ) from None
    if done.returncode != 0:
        raise ConfigError(f"`{shell_words(argv)}` says: {done.stderr.strip()}", hint="correct your ssh_config")
    endpoint = parse_resolved(done.stdout)
    if settings.jump is None:
        return endpoint
    return dataclasses.replace(endpoint, jump="" if settings.jump == "none" else settings.jump)


def last_hop(settings: SshSettings, jump: str) -> SshSettings:
    """The settings for the last hop of `jump`, which is reached over the hops before it.

    >>> last_hop(SshSettings("gpu"), "a,me@b:2222").destination
    'ssh://me@b:2222'
    """
    *before, last = jump.split(",")
    destination = last if "://" in last else f"ssh://{last}"
    return dataclasses.replace(settings, destination=destination, port=None, jump=",".join(before) or None)


def route(settings: SshSettings) -> tuple[Hop, ...]:
    """Every hop from the first one to the host itself; raises ConfigError where the hops go round in circles."""
    hops: tuple[Hop, ...] = (Hop(settings, resolve(settings)),)
    while hops[0].endpoint.jump:
        if len(hops) > _MAX_HOPS:
            raise ConfigError(
                f"more than {_MAX_HOPS} hops to {settings.destination}", hint="look for a ring of ProxyJump"
            )
        before = last_hop(hops[0].settings, hops[0].endpoint.jump)
        hops = (Hop(before, resolve(before)), *hops)
    return hops


def client_options(hops: tuple[Hop, ...]) -> Argv:
    """All options of the OpenSSH client for a route: the same keys, hops and host-key rule as our own link."""
    settings = hops[-1].settings
    options = (
        *base_options(settings),
        *("-o", f"StrictHostKeyChecking={'accept-new' if settings.host_keys == 'accept-new' else 'yes'}"),
        *("-o", f"ConnectTimeout={max(1, round(settings.connect_timeout_s))}"),
        *("-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2"),
        *("-o", "LogLevel=ERROR"),
    )
    if len(hops) == 1:
        return options
    # -J would leave the hop with neither our key nor our host-key rule
    inner = tuple(word.replace("%", "%%") for word in client_options(hops[:-1]))
    command = shell_words(("ssh", *inner, "-W", "[%h]:%p", "--", hops[-2].settings.destination))
    return (*options, "-o", f"ProxyCommand={command}")
