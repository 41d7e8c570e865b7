"""A Docker engine's API over a host's own channels: the SDK gets a private socket, each connection of it a process.

So the engine of a host behind SSH is reached by the same connection, host-key rule and `become` as all else there.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import docker.errors
import requests.exceptions

from opsctl.errors import CommandFailed, Disconnected, MissingTool, OpsctlError, TimedOut, Unreachable
from opsctl.target.host import Channel
from opsctl.target.target import Target

if TYPE_CHECKING:
    from docker import DockerClient

_DIAL = ("docker", "system", "dial-stdio")
_VERSION = ("docker", "version", "--format", "{{.Server.Version}}")
_ANSWER_LIMIT_S = 45.0
_REQUEST_LIMIT_S = 120
_POLL_S = 1.0
_CHUNK_BYTES = 1 << 16
_NO_PROGRAM = 127


class _Bridge:
    """Listens on a socket of ours; what connects to it talks to `docker system dial-stdio` on the host."""

    def __init__(self, target: Target, path: Path) -> None:
        self._target = target
        self._is_closing = threading.Event()
        self._channels: list[Channel] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, name="engine", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed: nobody wants more connections
            while True:
                connection, _ = self._listener.accept()
                self._join(connection)

    def _join(self, connection: socket.socket) -> None:
        try:
            channel = self._target.host.start((*self._target.become, *_DIAL))
        except OpsctlError:  # the SDK sees its connection closed, which `engine` explains
            connection.close()
            return
        self._channels.append(channel)
        for pump in (self._to_host, self._from_host):
            threading.Thread(target=pump, args=(connection, channel), name=pump.__name__, daemon=True).start()

    def _to_host(self, connection: socket.socket, channel: Channel) -> None:
        with contextlib.suppress(OSError, ValueError):  # one of the two ends was closed: the other pump sees it too
            while data := connection.recv(_CHUNK_BYTES):
                channel.write(data)
        channel.close_input()

    def _from_host(self, connection: socket.socket, channel: Channel) -> None:
        with contextlib.suppress(OSError, ValueError, Disconnected), connection:
            while data := self._read(channel):
                connection.sendall(data)

    def _read(self, channel: Channel) -> bytes:
        """The next bytes from the engine; an image that builds for minutes may be silent for as long."""
        while not self._is_closing.is_set():
            with contextlib.suppress(TimedOut):
                return channel.read(_POLL_S)
        return b""

    def close(self) -> None:
        self._is_closing.set()
        with contextlib.suppress(OSError):  # wakes `accept`, where the system can
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in self._channels:
            channel.close()


def _ensure_answers(target: Target) -> None:
    """One question first: the docker command's own words are clearer than a closed connection."""
    answer = target.ask_host(_VERSION, timeout_s=_ANSWER_LIMIT_S)
    if answer.outcome.code == 0:
        return
    if answer.outcome.code == _NO_PROGRAM:
        raise MissingTool(
            f"docker is not on {target.host.label}", hint="install the Docker engine and its command there"
        )
    hint = "start the engine there, join the group `docker`, or set `become:` of the target, for example [sudo, -n]"
    raise Unreachable(f"no Docker engine answers on {target.host.label}: {answer.errors.strip()}", hint=hint)


@contextlib.contextmanager
def engine(target: Target) -> Iterator[DockerClient]:
    """A client of the engine on the target's host; its failures leave as errors of ours."""
    _ensure_answers(target)
    with tempfile.TemporaryDirectory(prefix="opsctl-") as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "engine.sock"
        bridge = _Bridge(target, path)
        stack.callback(bridge.close)
        try:
            client = docker.DockerClient(base_url=f"unix://{path}", version="auto", timeout=_REQUEST_LIMIT_S)
            stack.callback(client.close)
            yield client
        except docker.errors.APIError as error:
            raise CommandFailed(
                f"the Docker engine on {target.host.label} refused: {error.explanation or error}"
            ) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise Disconnected(f"the Docker engine on {target.host.label} went away: {error}") from error
