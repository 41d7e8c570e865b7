"""By which keys we log in: the configured files first, then the agent's; never a password, never without a limit."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey, SourceResult
from paramiko.config import SSHConfig
from paramiko.pkey import UnknownKeyType

from opsctl.target.ssh_endpoint import Endpoint

_AGENT_LIMIT_S = 5.0


class _BoundedAgent(paramiko.Agent):
    """The user's SSH agent over a socket with a time limit: a dead agent's socket would hang us for ever."""

    def __init__(self, path: str) -> None:
        AgentSSH.__init__(self)  # Agent's own would connect to SSH_AUTH_SOCK, without a limit
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(_AGENT_LIMIT_S)
        try:
            link.connect(path)
            self._connect(link)  # type: ignore[attr-defined]  # the way in that Agent itself uses
        except BaseException:
            link.close()
            raise


def agent_path(endpoint: Endpoint) -> str:
    """The socket of the agent that this endpoint is to use, "" for none."""
    asked = endpoint.agent_socket
    if asked in ("", "SSH_AUTH_SOCK", "$SSH_AUTH_SOCK"):
        return os.environ.get("SSH_AUTH_SOCK", "") if asked else ""
    return str(Path(os.path.expandvars(asked)).expanduser())


def _public_blob(identity: str) -> bytes:
    """The public half of an identity file as an agent names it; b"" where there is none."""
    for path in (Path(identity), Path(f"{identity}.pub")):
        try:
            return base64.b64decode(path.read_text().split()[1], validate=True)
        except (OSError, UnicodeDecodeError, IndexError, binascii.Error):
            continue
    return b""


class Identities(AuthStrategy):
    """The keys to try, in order; what could not be used is kept in `notes` for the error message."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(ssh_config=SSHConfig())  # nothing in it: the endpoint is resolved already
        self._endpoint = endpoint
        self._agent: _BoundedAgent | None = None
        self.notes: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """Agent keys that are configured by name, configured files, then whatever else the agent holds.

        The configured come first: sshd hangs up after six wrong keys, and agents may hold many.
        """
        held = {key.asbytes(): key for key in self._agent_keys()}
        wanted = [blob for blob in map(_public_blob, self._endpoint.identities) if blob in held]
        for blob in wanted:
            yield self._try(f"agent key {held[blob].fingerprint}", held.pop(blob))
        for path in self._endpoint.identities:
            if Path(path).is_file() and _public_blob(path) not in wanted and (key := self._load(path)):
                yield self._try(path, key)
        if not self._endpoint.identities_only:
            for key in held.values():
                yield self._try(f"agent key {key.fingerprint}", key)
        if not self.notes:
            self.notes.append("no key to try: none of the configured files exists, and no agent holds one")

    def _try(self, name: str, key: paramiko.PKey) -> AuthSource:
        self.notes.append(f"{name}: refused")  # read only if all fail
        return InMemoryPrivateKey(self._endpoint.user, key)

    def _load(self, path: str) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # cryptography's word for a missing passphrase
            self.notes.append(f"{path}: needs a passphrase; `ssh-add {path}` gives it to the agent")
        except (ValueError, UnsupportedAlgorithm, paramiko.SSHException, UnknownKeyType, OSError) as error:
            self.notes.append(f"{path}: {error}")
        return None

    def _agent_keys(self) -> tuple[AgentKey, ...]:
        path = agent_path(self._endpoint)
        if not path:
            return ()
        try:
            self._agent = _BoundedAgent(path)
        except (OSError, paramiko.SSHException) as error:
            self.notes.append(f"agent at {path}: {error or 'no answer'}")
            return ()
        return self._agent.get_keys()

    def authenticate(self, transport: paramiko.Transport) -> list[SourceResult]:
        """Try one key after the other; raises AuthFailure if all are refused."""
        try:
            return super().authenticate(transport)
        finally:
            if self._agent is not None:
                self._agent.close()
                self._agent = None
