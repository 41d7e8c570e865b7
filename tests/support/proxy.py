"""A TCP proxy between a client and a real server that cuts, delays, freezes and swallows."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 16
_TICK_S = 0.05
# close() then sends RST instead of FIN: the other side sees a broken link, not an orderly end
_RESET = struct.pack("ii", 1, 0)


class LinkProxy:
    """Listens on a free port of 127.0.0.1 and hands bytes to `server_port`, as well as it is told to."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_TICK_S)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._flows = threading.Event()  # off: nothing is read any more, so that the sender's buffers fill up
        self._flows.set()
        self._swallowed_links = 0  # of the first so many links nothing passes
        self._is_over = threading.Event()
        self.num_to_turn_away = 0  # so many of the next links are closed at once, as a full sshd does
        self.delay_s = 0.0
        self.cut_after_bytes: int | None = None  # from the server; then the link is cut, once
        self.num_links = 0
        self._acceptor = threading.Thread(target=self._accept, name="proxy")
        self._acceptor.start()

    # -- faults -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break every open link at once."""
        with self._lock:
            links, self._open = self._open, set()
        for link in links:
            with contextlib.suppress(OSError):  # its other half broke it already
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                link.shutdown(socket.SHUT_RDWR)

    def swallow(self, *, new_links_too: bool = True) -> None:
        """Take all bytes and pass none on: a host that acknowledges and does not answer.

        Without `new_links_too` as a firewall does that has forgotten the links of now.
        """
        self._swallowed_links = sys.maxsize if new_links_too else self.num_links

    def freeze(self) -> None:
        """Take no bytes any more: a host that is gone."""
        self._flows.clear()

    def heal(self) -> None:
        """Pass bytes on again; what was swallowed stays lost."""
        self._swallowed_links = 0
        self._flows.set()

    def close(self) -> None:
        """Cut everything and stop listening."""
        self._is_over.set()
        self._flows.set()
        self.cut()
        self._acceptor.join()
        self._listener.close()

    # -- the way of the bytes --------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):  # only a look at `_is_over`
                client, _ = self._listener.accept()
                if self.num_to_turn_away > 0:
                    self.num_to_turn_away -= 1
                    client.close()
                else:
                    self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), 5)
        except OSError:
            client.close()
            return
        self.num_links += 1
        with self._lock:
            self._open |= {client, server}
        pumps = [
            threading.Thread(target=self._pump, args=(client, server, self.num_links, False), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, self.num_links, True), daemon=True),
        ]
        for pump in pumps:
            pump.start()
        threading.Thread(target=self._bury, args=(pumps, client, server), daemon=True).start()

    def _bury(self, pumps: list[threading.Thread], *links: socket.socket) -> None:
        for pump in pumps:
            pump.join()
        with self._lock:
            self._open -= set(links)
        for link in links:
            link.close()

    def _pump(self, source: socket.socket, sink: socket.socket, number: int, is_from_server: bool) -> None:
        source.settimeout(_TICK_S)
        with contextlib.suppress(OSError):  # cut, or closed by either side: this half is over
            while data := self._take(source):
                if self.delay_s:
                    self._is_over.wait(self.delay_s)
                if number > self._swallowed_links:
                    self._put(sink, data)
                if is_from_server:
                    self._count(len(data))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _take(self, source: socket.socket) -> bytes:
        while not self._is_over.is_set():
            if not self._flows.wait(_TICK_S):
                continue
            with contextlib.suppress(TimeoutError):  # no data yet; the fault may have changed
                return source.recv(_CHUNK_BYTES)
        return b""

    def _put(self, sink: socket.socket, data: bytes) -> None:
        """Hand all of it on, however long the other side takes: both pumps share a socket's short limit."""
        rest = memoryview(data)
        while rest and not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):  # it does not read yet
                rest = rest[sink.send(rest) :]

    def _count(self, num_bytes: int) -> None:
        with self._lock:  # of several links that come to it at once, one cuts
            if self.cut_after_bytes is None:
                return
            left = self.cut_after_bytes - num_bytes
            self.cut_after_bytes = left if left > 0 else None
        if left <= 0:
            self.cut()


@contextlib.contextmanager
def link_proxy(server_port: int) -> Iterator[LinkProxy]:
    """A proxy that is closed when the block ends."""
    proxy = LinkProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
