"""SSH hosts whose client files a test may change, and what a command on them says."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.errors import Unreachable
from opsctl.records.call import Outcome
from opsctl.target.command import Argv
from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings
from tests.support.sshd import Sshd, make_key, write_client_config

Reach = Callable[..., SshHost]


@pytest.fixture
def files(sshd: Sshd, tmp_path: Path) -> Path:
    """A folder of client files that a test may change: ssh_config, known_hosts, key."""
    folder = tmp_path / "client"
    folder.mkdir()
    for name in ("key", "key.pub", "host_key.pub"):
        shutil.copy(sshd.folder / name, folder)
    write_client_config(folder, sshd.port)
    return folder


@pytest.fixture
def reach(files: Path) -> Iterator[Reach]:
    """Hosts by their settings; their links are closed at the end."""
    with contextlib.ExitStack() as stack:

        def build(destination: str = "box", **settings: object) -> SshHost:
            given = SshSettings(destination, ssh_config=str(files / "ssh_config"), connect_timeout_s=15.0)
            host = SshHost(dataclasses.replace(given, **settings))
            stack.callback(host.close)
            return host

        yield build


def ran(host: SshHost, *argv: str) -> tuple[bytes, str, Outcome]:
    """Both streams of a command, and its outcome."""
    channel = host.start(argv)
    with contextlib.closing(channel):
        output = b""
        while data := channel.read(20.0):
            output += data
        return output, channel.error_tail(), channel.outcome(5.0)


def refused(host: SshHost, argv: Argv = ("true",)) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        host.start(argv)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """The public half of a host key that the server does not have."""
    make_key(tmp_path / "stranger")
    return tmp_path / "stranger.pub"
