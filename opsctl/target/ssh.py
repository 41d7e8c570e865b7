"""A host reached by SSH. Costs nothing until it is used: paramiko and Fabric are imported by the first command."""

from __future__ import annotations

import functools
import os
import random
import threading
import time
import weakref
from typing import TYPE_CHECKING

from opsctl.errors import Disconnected
from opsctl.target.command import Argv, shell_words
from opsctl.target.ssh_dial import dial
from opsctl.target.ssh_endpoint import Hop, SshSettings, client_options, route

if TYPE_CHECKING:
    from opsctl.target.ssh_channel import SshChannel
    from opsctl.target.ssh_link import SshLink


# sshd lets ten connections that have not logged in wait, and of more only some (MaxStartups 10:30:100)
_DOOR_PAUSES_S = (0.2, 0.4, 0.8, 1.6)


class SshHost:
    """A machine behind sshd; one connection a host and process, opened by the first command and used by all."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._links: list[SshLink] = []  # the one in use, if any; a list, so that the finalizer holds no host
        self._connecting = threading.Lock()
        weakref.finalize(self, _close_all, self._links)  # at exit too

    @property
    def label(self) -> str:
        """How messages name it."""
        port = f" port {self._settings.port}" if self._settings.port else ""
        return f"ssh {self._settings.destination}{port}"

    @functools.cached_property
    def _route(self) -> tuple[Hop, ...]:
        return route(self._settings)

    def start(self, argv: Argv) -> SshChannel:
        """Start a process with pipes; raises Unreachable, or Disconnected where the link goes down meanwhile.

        A link that turns out to be dead is replaced once: nothing has been sent over it at that point.
        """
        link, is_new = self._link()
        try:
            session = link.open_session()
        except Disconnected:
            if is_new:
                raise
            self._drop(link)
            link, _ = self._link()
            session = link.open_session()
        return link.run(session, os.fsencode(shell_words(argv)))

    def _link(self) -> tuple[SshLink, bool]:
        with self._connecting:
            for link in self._links:
                if link.is_alive():
                    return link, False
                self._drop(link)
            self._links[:] = [self._open()]
            return self._links[0], True

    def _open(self) -> SshLink:
        """A new connection; a server that turns us away at its door is asked again a few times."""
        first = self._route[0]
        pauses_s = iter(_DOOR_PAUSES_S)
        while True:
            dialled = None if first.endpoint.proxy_command else dial(first)
            from opsctl.target.ssh_link import (
                TurnedAway,
                open_link,
            )  # paramiko and Fabric: what no other target must pay

            try:
                return open_link(self._route, dialled)
            except TurnedAway as turned_away:
                pause_s = next(pauses_s, None)
                if pause_s is None:
                    raise turned_away.error from None
            time.sleep(pause_s * random.uniform(0.5, 1.5))

    def _drop(self, link: SshLink) -> None:
        link.retire()  # others may still use it, on a host that is merely slow
        if link in self._links:
            self._links.remove(link)

    def interactive_argv(self, argv: Argv) -> Argv:
        """The OpenSSH client's argv: it passes keys raw, follows the window's size and restores the terminal.

        Keys, hops and the host-key rule are the same as for `start`.
        """
        options = client_options(self._route)
        return ("ssh", *options, "-t", "--", self._settings.destination, shell_words(argv))

    def close(self) -> None:
        """End the connection, if there is one."""
        _close_all(self._links)


def _close_all(links: list[SshLink]) -> None:
    while links:
        links.pop().close()
