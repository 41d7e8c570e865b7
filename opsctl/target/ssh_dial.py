"""The TCP connection to a host, made before paramiko is loaded: the server gets ready meanwhile."""

from __future__ import annotations

import socket

from opsctl.errors import Unreachable
from opsctl.target.ssh_endpoint import Hop


def dial(hop: Hop) -> socket.socket:
    """A TCP connection to the host; raises Unreachable with what to look at."""
    endpoint, limit_s = hop.endpoint, hop.settings.connect_timeout_s
    try:
        link = socket.create_connection((endpoint.host, endpoint.port), limit_s)
    except socket.gaierror as error:
        raise Unreachable(
            f"cannot reach {endpoint.label}: no address for {endpoint.host!r}: {error.strerror}",
            hint="check the host's name in opsctl.yaml and ssh_config, and your DNS",
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"cannot reach {endpoint.label}: no answer within {limit_s:g} s",
            hint="check that the host is up and that no firewall drops this port; `connect_timeout_s` waits longer",
        ) from None
    except OSError as error:
        raise Unreachable(
            f"cannot reach {endpoint.label}: {error.strerror or error}",
            hint="check that sshd runs there and listens on this port",
        ) from None
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each small packet waits 40 ms for an ACK
    return link
