"""What every operation needs: the configuration, its folder, the target and a client. Connects to nothing."""

from __future__ import annotations

import functools
import getpass
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from opsctl import config_file
from opsctl.config import Config, ContainerConfig, TargetConfig
from opsctl.target.client import AgentClient
from opsctl.target.container import Container, Docker, Lxc, NoContainer, Pct
from opsctl.target.host import Host, LocalHost
from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings
from opsctl.target.target import Target


def operator_name() -> str:
    """Who asks, as locks and runs record it: user@machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's numeric user has no name
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


def build_host(settings: TargetConfig) -> Host:
    """The host that these settings describe; connects to nothing."""
    host = settings.host
    if host.ssh is None:
        return LocalHost()
    return SshHost(
        SshSettings(
            host.ssh,
            port=host.port,
            key_file=host.key_file,
            jump=host.jump,
            ssh_config=host.ssh_config,
            host_keys=host.host_keys,
            connect_timeout_s=host.connect_timeout_s,
        )
    )


def build_container(settings: ContainerConfig) -> Container:
    """The container that these settings describe."""
    user = settings.user or ""
    if settings.docker is not None:
        return Docker(settings.docker, user)
    if settings.lxc is not None:
        return Lxc(settings.lxc, user)
    return NoContainer() if settings.pct is None else Pct(settings.pct, user)


def build_target(name: str, settings: TargetConfig) -> Target:
    """The target that these settings describe."""
    host, container = build_host(settings), build_container(settings.container)
    return Target(name, host, container, home=settings.home, python=settings.python, become=settings.become)


@dataclass(frozen=True)
class Workspace:
    """One configuration and one of its targets."""

    config: Config
    folder: Path  # of opsctl.yaml; relative paths in it start here
    target: Target

    @functools.cached_property
    def client(self) -> AgentClient:
        """The client of the target's agent."""
        return AgentClient(self.target, operator=operator_name())

    @functools.cached_property
    def sources(self) -> bytes:
        """The project's sources as one archive, read once: what a command says of them is of one moment."""
        from opsctl.ops.source_files import files, pack  # with tarfile, which few commands need

        return pack(files(self.folder, self.config.code))


def open_workspace(config_path: Path | None, target_name: str | None) -> Workspace:
    """The workspace of the given or the nearest opsctl.yaml; raises ConfigError."""
    path = config_path or config_file.find(Path.cwd())
    config = config_file.load(path)
    name, settings = config.target(target_name)
    return Workspace(config, path.resolve().parent, build_target(name, settings))
