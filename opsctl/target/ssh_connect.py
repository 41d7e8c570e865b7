"""Opens one SSH connection through Fabric under our rules: known host keys, a limit on every wait, clear errors.

As they come, Fabric accepts any host key and paramiko waits up to an hour.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import fabric
import paramiko
from paramiko.auth_strategy import AuthFailure
from paramiko.config import SSHConfig

from opsctl.errors import OpsctlError, Unreachable
from opsctl.target.command import shell_words
from opsctl.target.ssh_endpoint import DEFAULT_PORT, Endpoint, Hop
from opsctl.target.ssh_identities import Identities
from opsctl.target.ssh_keys import HostKeyRule, KnownKeys, algorithms, changed, known_keys
from opsctl.target.ssh_transport import ReportingTransport

# on a loopback link no different from paramiko's 2 MiB; over 100 ms of round trip 80 MB/s instead of 20
WINDOW_BYTES = 8 << 20
# of one packet, where paramiko asks for 32 KiB: a quarter less time for the same output
PACKET_BYTES = 1 << 17
# a quarter quicker than paramiko's first choice, aes128-ctr with a separate sum
_QUICK_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

_NOWHERE = logging.NullHandler()  # paramiko's tracebacks on stderr help nobody


class TurnedAway(Exception):
    """The server closed the connection before it said a word, as sshd does with too many at its door (MaxStartups).

    Nothing was sent, so that it may be tried again; `error` is what to say in the end.
    """

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.error = Unreachable(
            f"{label} closed the connection before it said a word, and again when asked later",
            hint="too many logins at once (MaxStartups of its sshd), a ban of our address, or no sshd at that port",
        )


def _was_turned_away(connection: fabric.Connection, took_s: float, limit_s: float) -> bool:
    """Whether the server hung up without its banner, and not after we had waited for that in vain."""
    transport = connection.client.get_transport()
    return transport is not None and not transport.remote_version and took_s < limit_s


def _transport_factory(hop: Hop, known: KnownKeys) -> Callable[..., paramiko.Transport]:
    """What Fabric's client builds its transport with: our limits, ciphers, and the known types of key first."""
    limit_s = hop.settings.connect_timeout_s

    def build(sock: Any, **options: Any) -> paramiko.Transport:
        sizes = {"default_window_size": WINDOW_BYTES, "default_max_packet_size": PACKET_BYTES}
        transport = ReportingTransport(sock, **sizes, **options)
        transport.banner_timeout = transport.handshake_timeout = limit_s
        transport.auth_timeout = transport.channel_timeout = transport.clear_to_send_timeout = limit_s
        offered = transport.get_security_options()
        offered.ciphers = _first(_QUICK_CIPHERS, offered.ciphers)
        wanted = [name for key in known.valid for name in algorithms(key)]
        plain = tuple(name for name in offered.key_types if "-cert-" not in name)  # authorities are not checked
        offered.key_types = _first(wanted, plain)
        return transport

    return build


def _first(wanted: Sequence[str], offered: Sequence[str]) -> tuple[str, ...]:
    """`offered` with those that are wanted, and are offered at all, in front."""
    front = tuple(dict.fromkeys(name for name in wanted if name in offered))
    return (*front, *(name for name in offered if name not in front))


def _connection(hop: Hop, known: KnownKeys, identities: Identities, gateway: fabric.Connection | None) -> Any:
    endpoint = hop.endpoint
    keywords = {
        "auth_strategy": identities,
        "transport_factory": _transport_factory(hop, known),
        "channel_timeout": hop.settings.connect_timeout_s,
    }
    # lazy, and with a configuration of its own: no fabric.yaml and no ssh_config beside the resolved one
    settings = fabric.Config(lazy=True, ssh_config=SSHConfig())
    connection = fabric.Connection(
        endpoint.host,
        user=endpoint.user,
        port=endpoint.port,
        config=settings,
        gateway=gateway or _proxy_words(endpoint) or False,
        connect_kwargs=keywords,
    )
    accepts_new = hop.settings.host_keys == "accept-new"
    connection.client.set_missing_host_key_policy(HostKeyRule(endpoint, known, accepts_new=accepts_new))
    for key in known.valid:
        connection.client.get_host_keys().add(_paramiko_name(endpoint), key.get_name(), key)
    return connection


def _proxy_words(endpoint: Endpoint) -> str:
    """The ProxyCommand for paramiko, which splits it into words where OpenSSH asks a shell."""
    return shell_words(("sh", "-c", f"exec {endpoint.proxy_command}")) if endpoint.proxy_command else ""


def _paramiko_name(endpoint: Endpoint) -> str:
    """How paramiko looks the host up, which knows no HostKeyAlias."""
    return endpoint.host if endpoint.port == DEFAULT_PORT else f"[{endpoint.host}]:{endpoint.port}"


def _explain(error: Exception, hop: Hop, known: KnownKeys, identities: Identities) -> OpsctlError:
    """What a failed handshake or login means for the user."""
    label = hop.endpoint.label
    if isinstance(error, paramiko.BadHostKeyException):
        return changed(hop.endpoint, known, error.key)
    if isinstance(error, (AuthFailure, paramiko.AuthenticationException)):
        tried = "; ".join(identities.notes)
        return Unreachable(
            f"{label} lets none of our keys in: {tried}",
            hint="add your public key to authorized_keys there, or name the right one as `key_file`",
        )
    reason = f"{error}".strip() or type(error).__name__
    if isinstance(error, EOFError) or "banner" in reason:
        reason = f"it does not speak SSH with us ({reason})"
    return Unreachable(
        f"cannot log in at {label}: {reason}",
        hint=f"`ssh -v -p {hop.endpoint.port} {hop.endpoint.user}@{hop.endpoint.host} true` shows more",
    )


def open_hop(hop: Hop, gateway: fabric.Connection | None, dialled: socket.socket | None) -> fabric.Connection:
    """Check the host's key and log in, over a hop, a TCP connection or a ProxyCommand.

    Raises Unreachable, or TurnedAway where the same may succeed in a moment.
    """
    logging.getLogger("paramiko").addHandler(_NOWHERE)
    known, identities = known_keys(hop.endpoint), Identities(hop.endpoint)
    connection = _connection(hop, known, identities, gateway)
    if dialled is not None:
        connection.connect_kwargs["sock"] = dialled
    began, limit_s = time.monotonic(), hop.settings.connect_timeout_s
    overdue = threading.Timer(3 * limit_s, connection.client.close)  # many keys, each within its own limit
    overdue.daemon = True
    overdue.start()
    try:
        connection.open()
        if not connection.transport.is_authenticated():
            raise Unreachable(
                f"{hop.endpoint.label} wants more than a key, a second factor",
                hint="opsctl asks no questions: let a key alone in for this user, or come over a host that may",
            )
    except (paramiko.SSHException, EOFError, OSError) as error:
        is_turned_away = _was_turned_away(connection, time.monotonic() - began, limit_s)
        hang_up(connection)
        if is_turned_away:
            raise TurnedAway(hop.endpoint.label) from None
        raise _explain(error, hop, known, identities) from None
    except BaseException:
        hang_up(connection)
        raise
    finally:
        overdue.cancel()
    return connection


def hang_up(connection: fabric.Connection) -> None:
    """End a connection at once, in whatever state it is."""
    transport = connection.client.get_transport()
    if transport is None:
        return
    transport.packetizer.complete_handshake()  # else its timer keeps this process from ending
    connection.client.close()
    if isinstance(transport.sock, paramiko.ProxyCommand):
        transport.join(1.0)  # it reads from the command's pipes
        _reap(transport.sock.process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a ProxyCommand that paramiko has asked to end, and free its pipes."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it ignores that: nothing of ours hangs on it
        process.wait(1.0)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
