"""What a channel of a dead link says."""

from __future__ import annotations

import threading
from typing import Any, cast

import paramiko

from opsctl.records.call import Outcome
from opsctl.target.ssh_channel import SshChannel


class DeadChannel:
    """A paramiko channel whose link broke with bytes still in its buffer: reading announces room, which fails."""

    def __init__(self) -> None:
        self.status_event = threading.Event()
        self.status_event.set()
        self.exit_status = -1

    def settimeout(self, timeout_s: float) -> None:
        """Take any limit."""

    def recv(self, size: int) -> bytes:
        """Fail as paramiko's packetizer does."""
        raise EOFError

    recv_stderr = recv


def test_a_link_that_dies_while_reading_is_lost_not_a_bug() -> None:
    channel = SshChannel(cast(paramiko.Channel, cast(Any, DeadChannel())), on_close=lambda: None)
    assert channel.read(1.0) == b""
    assert channel.outcome(1.0) == Outcome("link_lost")
