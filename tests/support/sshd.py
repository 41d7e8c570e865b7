"""A real sshd on the loopback interface: keys, known_hosts and home of its own, no fixed port."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.proxy import LinkProxy, link_proxy
from tests.support.until import until

SSHD = Path("/usr/sbin/sshd")
_TRIES = 5

_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
PrintMotd no
PrintLastLog no
AcceptEnv TERM
SetEnv HOME={folder}/home
"""
_CLIENT = """\
Host box
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile "{folder}/key"
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile "{folder}/known_hosts"
  GlobalKnownHostsFile none
"""


def free_port() -> int:
    """A port that nobody listens on, and that nobody gets who asks for any: a server that names it may have it.

    The kernel gives a bound port to nobody else, neither to listen on nor to call from.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, which may then share it
    keeper.bind(("127.0.0.1", 0))
    atexit.register(keeper.close)  # which holds it until then
    return int(keeper.getsockname()[1])


def make_key(path: Path, *options: str) -> None:
    """A key pair without passphrase at `path`, unless it stands."""
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", *options, "-f", path], check=True)


def known_line(public_key: Path, port: int) -> str:
    """The row of known_hosts for the host key in `public_key`."""
    return f"[127.0.0.1]:{port} {' '.join(public_key.read_text().split()[:2])}\n"


def write_client_config(folder: Path, port: int) -> Path:
    """An ssh_config whose host `box` is 127.0.0.1 at `port`, and a known_hosts that knows it there."""
    (folder / "known_hosts").write_text(known_line(folder / "host_key.pub", port))
    path = folder / "ssh_config"
    path.write_text(_CLIENT.format(folder=folder, port=port, user=getpass.getuser()))
    return path


@dataclass(frozen=True)
class Sshd:
    """A running server, and the files that a client of it needs."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key_file(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """Knows the server as host `box`."""
        return self.folder / "ssh_config"

    @property
    def home(self) -> Path:
        """HOME of the sessions."""
        return self.folder / "home"

    @property
    def settings(self) -> dict[str, str]:
        """The `host:` section of opsctl.yaml that leads here."""
        return {"ssh": "box", "ssh_config": str(self.ssh_config)}

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def sessions(self) -> list[psutil.Process]:
        """The processes below the listener: those of its connections and what runs in them."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        """End the listener, its connections and what still runs in them."""
        below = self.sessions() if self.process.poll() is None else []
        self.process.terminate()
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):  # ended with its connection
                one.kill()
        self.process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as link:
        return link.recv(4) == b"SSH-"
    return False


def _start(folder: Path, port: int, settings: Sequence[str]) -> Sshd:
    config = folder / "sshd_config"
    # of several rows for one setting sshd takes the first
    config.write_text("".join(f"{row}\n" for row in settings) + _SERVER.format(folder=folder, port=port))
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=log, env={"PATH": os.environ["PATH"]}
        )
    return Sshd(folder, port, process)


def start_sshd(folder: Path, *, port: int | None = None, settings: Sequence[str] = ()) -> Sshd:
    """A server with its files in `folder`; `settings` are further rows of its configuration."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own folder for privilege separation
    (folder / "home").mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "key"):
        make_key(folder / name)
    shutil.copyfile(folder / "key.pub", folder / "authorized_keys")
    for _ in range(_TRIES):
        server = _start(folder, port or free_port(), settings)
        until(lambda server=server: server.process.poll() is not None or _answers(server.port))
        if server.process.poll() is None:
            write_client_config(folder, server.port)
            return server
    raise AssertionError(f"sshd does not start: {server.log}")


@contextlib.contextmanager
def running_sshd(folder: Path, *, settings: Sequence[str] = ()) -> Iterator[Sshd]:
    """A server that ends, with all that it started, when the block does."""
    server = start_sshd(folder, settings=settings)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One server for the whole test run."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def far_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A second server, whose client files `proxy` changes."""
    with running_sshd(tmp_path_factory.mktemp("far-sshd")) as server:
        yield server


@pytest.fixture
def proxy(far_sshd: Sshd) -> Iterator[LinkProxy]:
    """The way to `far_sshd`: its host `box` is reached through this proxy."""
    with link_proxy(far_sshd.port) as running:
        write_client_config(far_sshd.folder, running.port)
        yield running
