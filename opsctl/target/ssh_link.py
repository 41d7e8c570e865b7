"""One open SSH connection: sessions for processes, and a watch that ends it when the far side falls silent.

paramiko's keepalive never looks for an answer, so that a dead link would hang every wait.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import fabric
import paramiko

from opsctl.errors import Disconnected, Unreachable
from opsctl.target.ssh_channel import SshChannel
from opsctl.target.ssh_connect import TurnedAway as TurnedAway
from opsctl.target.ssh_connect import hang_up, open_hop
from opsctl.target.ssh_endpoint import Hop
from opsctl.target.ssh_transport import ReportingTransport

# Below the 5 s after which a call gives its agent up, so that the link is blamed first, and low enough for a machine so
# busy that we come late: 6 s are promised. The far side has the time between the two to answer.
SILENCE_LIMIT_S = 4.0
_ASK_AFTER_S = 1.5
_WATCH_PERIOD_S = 0.25


@dataclass
class SshLink:
    """An open connection, over its hops; several threads may use it."""

    hops: tuple[Hop, ...]
    connections: tuple[fabric.Connection, ...]  # the first hop's first
    _users: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _is_retired: bool = False

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, name="ssh-watch", daemon=True).start()

    @property
    def _transport(self) -> ReportingTransport:
        transport: ReportingTransport = self.connections[-1].transport
        return transport

    @property
    def label(self) -> str:
        return self.hops[-1].endpoint.label

    def is_alive(self) -> bool:
        """Whether it can still be used, as far as we know."""
        return not (self._is_over.is_set() or self._is_retired) and self._transport.is_active()

    # -- processes ---------------------------------------------------------------------------------

    def open_session(self) -> paramiko.Channel:
        """A channel for one process, nothing started yet; raises Disconnected if the link is no more."""
        with self._used_or_left():
            try:
                return self._transport.open_session()
            except paramiko.ChannelException as error:
                raise Unreachable(
                    f"{self.label} refuses another session: {error.text}",
                    hint="sshd's MaxSessions limits how many calls one connection carries; end some of yours",
                ) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise Disconnected(f"the link to {self.label} is down: {error}", hint="try again") from None

    def run(self, session: paramiko.Channel, command: bytes) -> SshChannel:
        """Start `command` in a session of this link."""
        try:
            session.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._leave()
            if self.is_alive():
                raise Unreachable(
                    f"{self.label} does not start commands: {error}",
                    hint="look for ForceCommand in its sshd_config and for command= in authorized_keys",
                ) from None
            raise Disconnected(f"the link to {self.label} went down: {error}", hint="try again") from None
        return SshChannel(session, self._leave)

    @contextlib.contextmanager
    def _used_or_left(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
        try:
            yield
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_idle = self._is_retired and self._users == 0
        if is_idle:
            self.close()

    def retire(self) -> None:
        """Take no new sessions; end it once the last one is closed, or at once if it is dead."""
        with self._lock:
            self._is_retired = True
            is_idle = self._users == 0
        if is_idle or not self._transport.is_active():
            self.close()

    # -- silence -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Ask a silent far side for a sign of life, and end the link if none comes; idle links are left alone."""
        watch = SilenceWatch(time.monotonic())
        while not self._is_over.wait(_WATCH_PERIOD_S):
            verdict = watch.look(time.monotonic(), heard=self._transport.heard_at, in_use=self._users > 0)
            if verdict == "ask":
                # in a thread of its own: on a full link even the question hangs
                threading.Thread(target=self._ask, name="ssh-ask", daemon=True).start()
            elif verdict == "lost":
                self.close()

    def _ask(self) -> None:
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):  # the link went down meanwhile
            self._transport.global_request("keepalive@openssh.com", wait=True)

    def close(self) -> None:
        """End the connection at once, whatever state it is in; every wait on it ends."""
        self._is_over.set()
        for connection in self.connections:  # the first hop first: the others' farewells would wait for it
            hang_up(connection)


@dataclass
class SilenceWatch:
    """Decides from times alone whether a link is silent; one that stops looking itself asks the link anew."""

    looked: float
    since: float = 0.0  # silence is counted from here at the earliest
    asked_at: float = 0.0

    def look(self, now: float, *, heard: float, in_use: bool) -> str:
        """ "" if all is well, "ask" if the far side should be asked now, "lost" if it is silent for too long."""
        if not in_use:
            self.since = now
        elif now - self.looked > SILENCE_LIMIT_S / 2:  # we were stopped, and not the link: it has yet to answer
            self.since = now - _ASK_AFTER_S
        self.looked = now
        last = max(heard, self.since)
        if now - last > SILENCE_LIMIT_S:
            return "lost"
        if now - last > _ASK_AFTER_S and self.asked_at <= last:
            self.asked_at = now
            return "ask"
        return ""


def open_link(hops: tuple[Hop, ...], dialled: socket.socket | None) -> SshLink:
    """A connection over these hops, whose first one has been dialled; raises Unreachable naming the one that failed."""
    opened: list[fabric.Connection] = []
    try:
        for hop in hops:
            opened.append(open_hop(hop, opened[-1], None) if opened else open_hop(hop, None, dialled))
    except BaseException:
        if dialled is not None:
            dialled.close()
        for connection in opened:
            hang_up(connection)
        raise
    return SshLink(hops, tuple(opened))
