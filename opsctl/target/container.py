"""Containers as pure functions: argv on the host from argv inside, and a state from the host's words. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opsctl.target.command import Argv
from opsctl.target.container_state import ContainerState, state_of

# libtmux fails and Python guesses an ASCII file system where no UTF-8 locale is set
_LOCALE = "LC_ALL=C.UTF-8"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What a login would set, for processes that no login started: lxc-attach --clear-env sets nothing, pct hands the
# host's environment on, docker knows no USER and gives a user without a name no home. The words after it are data.
ENTER = r"""u=$(id -u) n= h= s=
if [ -r /etc/passwd ]; then
  while IFS=: read -r a _ b _ _ c d; do
    if [ "$b" = "$u" ]; then n=$a h=$c s=$d; break; fi
  done </etc/passwd
fi
USER=${n:-$u} LOGNAME=${n:-$u} HOME=${h:-${HOME:-/}} SHELL=${s:-/bin/sh} TMPDIR=${TMPDIR:-/tmp} LC_ALL=C.UTF-8
export USER LOGNAME HOME SHELL TMPDIR LC_ALL
cd "$HOME" 2>/dev/null || cd /
exec "$@"
"""
# whether a name stands for a user, in a status that nothing on the way gives: EX_NOUSER of sysexits.h
NO_USER = 67
_KNOWS_USER = f'id -u "$1" >/dev/null 2>&1 || exit {NO_USER}'
_STOP_S = "60"  # then it is killed


class Container(Protocol):
    """What an argv is wrapped in on its host."""

    @property
    def label(self) -> str:
        """How messages name it, "" for none."""

    @property
    def user(self) -> str:
        """Who its processes are, "" for its own choice."""

    @property
    def state_argv(self) -> Argv:
        """The argv on the host that tells its state, () where there is none to ask for."""

    @property
    def start_argv(self) -> Argv:
        """The argv on the host that starts it once it exists, () for none."""

    @property
    def stop_argv(self) -> Argv:
        """The argv on the host that stops it, politely first, () for none."""

    @property
    def resume_argv(self) -> Argv:
        """The argv on the host that ends a pause, () for none."""

    @property
    def user_argv(self) -> Argv:
        """The argv on the host that ends with NO_USER where the user is unknown inside, () for none by name."""

    def wrap(self, argv: Argv) -> Argv:
        """The argv on the host that runs `argv` inside, with pipes."""

    def wrap_interactive(self, argv: Argv, *, terminal: str) -> Argv:
        """The argv on the host that runs `argv` inside on the caller's terminal of type `terminal`."""

    def parse_state(self, code: int | None, output: str, errors: str) -> ContainerState:
        """The state from how `state_argv` ended and what it printed."""


@dataclass(frozen=True)
class NoContainer:
    """Nothing but a UTF-8 locale is put in front."""

    label: str = ""
    user: str = ""
    state_argv: Argv = ()
    start_argv: Argv = ()
    stop_argv: Argv = ()
    resume_argv: Argv = ()
    user_argv: Argv = ()

    def wrap(self, argv: Argv) -> Argv:
        """The argv itself, in a UTF-8 locale.

        >>> NoContainer().wrap(("true",))
        ('env', 'LC_ALL=C.UTF-8', 'true')
        """
        return ("env", _LOCALE, *argv)

    def wrap_interactive(self, argv: Argv, *, terminal: str) -> Argv:
        """The argv itself, in a UTF-8 locale; the terminal's type is already right."""
        return self.wrap(argv)

    def parse_state(self, code: int | None, output: str, errors: str) -> ContainerState:
        """A host that answers runs."""
        return ContainerState("running")


@dataclass(frozen=True)
class Docker:
    """A Docker container by its name or id; `user` is a name, a uid or uid:gid inside."""

    name: str
    user: str = ""

    @property
    def label(self) -> str:
        return _label("docker", self.name, self.user)

    @property
    def state_argv(self) -> Argv:
        return ("docker", "container", "inspect", "--format", "{{.State.Status}}", self.name)

    @property
    def start_argv(self) -> Argv:
        return ("docker", "start", self.name)

    @property
    def stop_argv(self) -> Argv:
        return ("docker", "stop", "-t", _STOP_S, self.name)

    @property
    def resume_argv(self) -> Argv:
        return ("docker", "unpause", self.name)

    @property
    def user_argv(self) -> Argv:
        is_name = bool(self.user) and not self.user[0].isdigit()
        return ("docker", "exec", "-u", "0", self.name, *_knows(self.user)) if is_name else ()

    def wrap(self, argv: Argv) -> Argv:
        """Through `docker exec`; the image's own environment stays, PATH with it.

        >>> Docker("gpu", "ml").wrap(("true",))[:6]
        ('docker', 'exec', '-i', '-u', 'ml', 'gpu')
        """
        return ("docker", "exec", "-i", *self._user_words(), self.name, *_enter(argv))

    def wrap_interactive(self, argv: Argv, *, terminal: str) -> Argv:
        """Through `docker exec -it`."""
        return ("docker", "exec", "-it", *self._user_words(), self.name, *_enter(argv, f"TERM={terminal}"))

    def _user_words(self) -> Argv:
        return ("-u", self.user) if self.user else ()

    def parse_state(self, code: int | None, output: str, errors: str) -> ContainerState:
        """From docker's status word.

        >>> Docker("gpu").parse_state(0, "exited\\n", "").kind
        'stopped'
        """
        kinds = {"running": "running", "exited": "stopped", "created": "stopped", "dead": "stopped"}
        kinds |= {"restarting": "stopped", "removing": "stopped", "paused": "paused"}
        return state_of(code, output, errors, kinds=kinds, missing="no such")


@dataclass(frozen=True)
class Lxc:
    """An LXC container by its name; `user` is a user's name inside."""

    name: str
    user: str = ""

    @property
    def label(self) -> str:
        return _label("lxc", self.name, self.user)

    @property
    def state_argv(self) -> Argv:
        return ("lxc-info", "-n", self.name, "-s", "-H")

    @property
    def start_argv(self) -> Argv:
        return ("lxc-start", "-n", self.name)

    @property
    def stop_argv(self) -> Argv:
        return ("lxc-stop", "-n", self.name, "-t", _STOP_S)

    @property
    def resume_argv(self) -> Argv:
        return ("lxc-unfreeze", "-n", self.name)

    @property
    def user_argv(self) -> Argv:
        return (*self._attach(), "env", _PATH, *_knows(self.user)) if self.user else ()

    def wrap(self, argv: Argv) -> Argv:
        """Through `lxc-attach` with an environment that starts empty.

        >>> Lxc("gpu").wrap(("true",))[:5]
        ('lxc-attach', '-n', 'gpu', '--clear-env', '--')
        """
        return (*self._attach(), "env", _PATH, *_as_user(self.user), *_enter(argv))

    def wrap_interactive(self, argv: Argv, *, terminal: str) -> Argv:
        """The same: `lxc-attach` makes a terminal inside where its own stdin is one."""
        return (*self._attach(), "env", _PATH, *_as_user(self.user), *_enter(argv, f"TERM={terminal}"))

    def _attach(self) -> Argv:
        return ("lxc-attach", "-n", self.name, "--clear-env", "--")

    def parse_state(self, code: int | None, output: str, errors: str) -> ContainerState:
        """From lxc-info's state word.

        >>> Lxc("gpu").parse_state(0, "RUNNING\\n", "").kind
        'running'
        """
        kinds = {"running": "running", "stopped": "stopped", "starting": "stopped", "stopping": "stopped"}
        kinds |= {"aborting": "stopped", "frozen": "paused", "freezing": "paused", "thawed": "running"}
        return state_of(code, output, errors, kinds=kinds, missing="doesn't exist")


@dataclass(frozen=True)
class Pct:
    """A Proxmox container by its number; `user` is a user's name inside."""

    vmid: int
    user: str = ""

    @property
    def label(self) -> str:
        return _label("pct", str(self.vmid), self.user)

    @property
    def state_argv(self) -> Argv:
        return ("pct", "status", str(self.vmid))

    @property
    def start_argv(self) -> Argv:
        return ("pct", "start", str(self.vmid))

    @property
    def stop_argv(self) -> Argv:
        return ("pct", "shutdown", str(self.vmid), "--timeout", _STOP_S, "--forceStop", "1")

    @property
    def resume_argv(self) -> Argv:
        return ("pct", "resume", str(self.vmid))

    @property
    def user_argv(self) -> Argv:
        return (*self._exec(), "env", "-i", _PATH, *_knows(self.user)) if self.user else ()

    def wrap(self, argv: Argv) -> Argv:
        """Through `pct exec`, which hands the host's environment on: it is emptied first.

        >>> Pct(200, "ml").wrap(("true",))[:10]
        ('pct', 'exec', '200', '--', 'env', '-i', 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', \
'runuser', '-u', 'ml')
        """
        return (*self._exec(), "env", "-i", _PATH, *_as_user(self.user), *_enter(argv))

    def wrap_interactive(self, argv: Argv, *, terminal: str) -> Argv:
        """The same: `pct exec` makes a terminal inside where its own stdin is one."""
        return (*self._exec(), "env", "-i", _PATH, *_as_user(self.user), *_enter(argv, f"TERM={terminal}"))

    def _exec(self) -> Argv:
        return ("pct", "exec", str(self.vmid), "--")

    def parse_state(self, code: int | None, output: str, errors: str) -> ContainerState:
        """From the word after `status:`.

        >>> Pct(200).parse_state(0, "status: stopped\\n", "").kind
        'stopped'
        """
        kinds = {"running": "running", "stopped": "stopped", "suspended": "paused", "paused": "paused"}
        return state_of(code, output.removeprefix("status:"), errors, kinds=kinds, missing="does not exist")


def _label(kind: str, name: str, user: str) -> str:
    return f"{kind} {name} as {user}" if user else f"{kind} {name}"


def _enter(argv: Argv, *assignments: str) -> Argv:
    front = ("env", *assignments) if assignments else ()
    return (*front, "sh", "-c", ENTER, "opsctl", *argv)


def _knows(user: str) -> Argv:
    return ("sh", "-c", _KNOWS_USER, "opsctl", user)


def _as_user(user: str) -> Argv:
    return ("runuser", "-u", user, "--") if user else ()
