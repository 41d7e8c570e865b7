"""paramiko's transport, made to report two things that it throws away: when it last heard, and fatal signals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.packet import Packetizer


class _HearingPacketizer(Packetizer):
    heard_at = 0.0

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        data = super().read_all(n, check_rekey)
        self.heard_at = time.monotonic()
        return data


def _handle_request(channel: Any, message: paramiko.Message) -> None:
    """Keep an exit-signal as the channel's `exit_signal`, and leave the rest to paramiko."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.exit_signal = message.get_text()
    else:
        message.packet.seek(start)
        channel._handle_request(message)


class ReportingTransport(paramiko.Transport):
    """A transport that knows when it last heard, and whose channels know which signal ended their process."""

    packetizer: _HearingPacketizer
    _channel_handler_table: ClassVar[dict[int, Callable[..., None]]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # not in the stubs
        MSG_CHANNEL_REQUEST: _handle_request,
    }

    def __init__(self, sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=_HearingPacketizer, **options)

    @property
    def heard_at(self) -> float:
        """When the last bytes came, on the monotonic clock; 0 for never."""
        return self.packetizer.heard_at
