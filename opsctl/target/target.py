"""A target: host x container under a name. Joins the two; knows nothing of the agent's verbs."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from opsctl.errors import (
    ConfigError,
    ContainerMissing,
    Disconnected,
    MissingTool,
    OpsctlError,
    TargetError,
    TimedOut,
    Unreachable,
)
from opsctl.records.call import Outcome
from opsctl.target.command import Argv, shell_words
from opsctl.target.container import NO_USER, Container
from opsctl.target.container_state import ContainerState
from opsctl.target.host import Channel, Host

STATE_LIMIT_S = 30.0


# what the terminal descriptions of a small system hold
_KNOWN_TERMINALS = re.compile(r"ansi|dumb|linux|rxvt|vt100|vt220|(screen|tmux|xterm)(-256color)?")


def portable_terminal(name: str) -> str:
    """The terminal's type for a container, which may never have heard of a newer one.

    >>> portable_terminal("screen"), portable_terminal("xterm-ghostty")
    ('screen', 'xterm-256color')
    """
    return name if _KNOWN_TERMINALS.fullmatch(name) else "xterm-256color"


@dataclass(frozen=True)
class HostAnswer:
    """A short command on the host that ended: how, and what it printed."""

    outcome: Outcome
    output: str
    errors: str


@dataclass(frozen=True)
class Target:
    """Where things run, and where opsctl keeps its state there."""

    name: str
    host: Host
    container: Container
    home: str = "~/.opsctl"
    python: str = "python3"
    become: Argv = ()  # words in front of all that is started on the host, for example ("sudo", "-n")

    @property
    def label(self) -> str:
        """How messages name it: the name, and what stands behind it."""
        behind = " ".join(part for part in (self.host.label, self.container.label) if part)
        return f"{self.name} ({behind})"

    def start(self, argv: Argv) -> Channel:
        """Start `argv` inside the target with pipes."""
        return self.host.start((*self.become, *self.container.wrap(argv)))

    def interactive_argv(self, argv: Argv) -> Argv:
        """The local argv that runs `argv` inside the target on the caller's terminal."""
        terminal = portable_terminal(os.environ.get("TERM", ""))
        inside = self.container.wrap_interactive(argv, terminal=terminal)
        return self.host.interactive_argv((*self.become, *inside))

    def ask_host(self, argv: Argv, *, timeout_s: float) -> HostAnswer:
        """Run a short command on the host, outside the container; raises TimedOut after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        channel = self.host.start((*self.become, *argv))
        try:
            channel.close_input()
            output = b""
            while data := channel.read(max(0.0, deadline - time.monotonic())):
                output += data
            outcome = channel.outcome(max(0.0, deadline - time.monotonic()))
            if outcome.kind == "timed_out":
                raise TimedOut(f"`{shell_words(argv)}` on {self.host.label} took longer than {timeout_s:g} s")
            return HostAnswer(outcome, output.decode(errors="replace"), channel.error_tail())
        finally:
            channel.close()

    def container_state(self) -> ContainerState:
        """What the host says of the container; raises TargetError, TimedOut or MissingTool."""
        if not self.container.state_argv:
            return ContainerState("running")
        answer = self.ask_host(self.container.state_argv, timeout_s=STATE_LIMIT_S)
        return self.container.parse_state(answer.outcome.code, answer.output, answer.errors)

    def entry_problem(self) -> OpsctlError | None:
        """Why nothing starts inside: the container does not run, or lacks the user; None where neither is so.

        Raises TargetError, TimedOut or MissingTool where the host does not say.
        """
        problem = refusal(self.container_state(), self)
        if problem is not None or not self.container.user_argv:
            return problem
        answer = self.ask_host(self.container.user_argv, timeout_s=STATE_LIMIT_S)
        return _unknown_user(self) if answer.outcome.code == NO_USER else None

    def explained(self, error: Disconnected) -> OpsctlError:
        """`error`, or the better one where the container turns out to be stopped, missing or without the user."""
        try:
            return self.entry_problem() or error
        except (TargetError, TimedOut):  # the host itself does not answer: no word on the container
            return error
        except MissingTool as missing:
            return missing


def _unknown_user(target: Target) -> ConfigError:
    key = f"targets.{target.name}.container.user"
    return ConfigError(
        f"{key}: container {target.container.label} on {target.host.label} knows no such user",
        hint=f"correct `user:` there, or make the user inside (`useradd -m {target.container.user}`)",
    )


def refusal(state: ContainerState, target: Target) -> OpsctlError | None:
    """The error that says why nothing can run in a container in this state; None where it runs."""
    container, where = target.container, target.host.label
    start = f"`opsctl container up -t {target.name}`"
    if state.kind == "running":
        return None
    if state.kind == "no_tool":
        return MissingTool(
            f"{container.state_argv[0]} is not on {where}", hint="install it there, or correct `container:`"
        )
    if state.kind == "missing":
        hint = f"check the name under `container:` of target {target.name!r}; {start} makes a Docker container"
        return ContainerMissing(f"there is no container {container.label} on {where}", hint=hint)
    if state.kind == "paused":
        hint = f"`{shell_words((*target.become, *container.resume_argv))}` on the host lets it go on"
        return ContainerMissing(f"container {container.label} on {where} is paused", hint=hint)
    if state.kind == "stopped":
        detail = f" ({state.detail})" if state.detail not in ("", "stopped") else ""
        hint = f"{start}, or `{shell_words((*target.become, *container.start_argv))}` on the host, starts it"
        return ContainerMissing(f"container {container.label} on {where} does not run{detail}", hint=hint)
    hint = "check that this user may ask there, or set `become:` of the target, for example [sudo, -n]"
    return Unreachable(f"no word on container {container.label} on {where}: {state.detail}", hint=hint)
