"""`opsctl exec` and `opsctl shell`: one command inside the target, its status passed through."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, TargetName, workspace
from opsctl.errors import EXEC_FAULT, EXEC_TIMED_OUT, OpsctlError, TimedOut, UsageError, foreseen

if TYPE_CHECKING:
    from opsctl.ops.exec import CommandInput
    from opsctl.records.call import Outcome

# what follows the first word of the command belongs to it, also without --
WORDS = {"allow_interspersed_args": False}

_Env = Annotated[
    str, typer.Option("--env", metavar="ID", help="Put this environment's programs first; `active` is the active one.")
]


def _pass_on(stream: str, data: bytes) -> None:
    if stream == "stdout":
        ui.raw(data)
    else:
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def _is_piped(descriptor: int) -> bool:
    """Whether something other than a terminal is there to be read."""
    try:
        return not os.isatty(descriptor)
    except OSError:  # closed
        return False


@contextlib.contextmanager
def _forwarding(inputs: CommandInput) -> Iterator[None]:
    """The first SIGINT and SIGTERM go to the command; a second one, or one before it runs, ends us."""
    forwarded: set[int] = set()
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def forward(number: int, frame: FrameType | None) -> None:
        handler = own[signal.Signals(number)]
        if number not in forwarded and inputs.signal(number):
            forwarded.add(number)
        elif callable(handler):
            handler(number, frame)

    for number in own:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)


def _status(outcome: Outcome) -> int:
    if outcome.kind == "timed_out":
        ui.say("error: the command took too long and was ended")
        return EXEC_TIMED_OUT
    return 128 + outcome.signal if outcome.signal else outcome.code or 0


def _own_fault(error: OpsctlError | OSError) -> BaseException:
    """The end of the call by a fault that is not the command's; what nobody foresaw stays as it is."""
    problem = foreseen(error) if isinstance(error, OSError) and not isinstance(error, OpsctlError) else error
    if problem is None:
        return error
    ui.error(problem, as_json=False)
    return typer.Exit(EXEC_TIMED_OUT if isinstance(problem, TimedOut) else EXEC_FAULT)


def exec_(
    argv: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command and its words.")],
    env: _Env = "",
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds; then it is ended.")] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Give it no input, whatever ours is.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
) -> None:
    """Run one command inside the target; its exit status is ours (own faults: 125, time-out: 124).

    Its stdin is ours unless that is a terminal; SIGINT and SIGTERM are passed on, a second one ends the call. What
    it leaves in its process group ends with it: long work is a run of `opsctl train`.

    Example: opsctl exec -- nvidia-smi -L
    """
    from opsctl.ops.exec import CommandInput, run

    inputs = CommandInput(0 if not no_stdin and _is_piped(0) else None)
    try:
        where = workspace(config, target)
        with _forwarding(inputs):
            outcome = run(where, tuple(argv), on_output=_pass_on, inputs=inputs, timeout_s=timeout, env=env)
    except (OpsctlError, OSError) as error:
        raise _own_fault(error) from None
    raise typer.Exit(_status(outcome))


def shell(
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="What to run instead of the login shell.")
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
) -> None:
    """Open a login shell inside the target on this terminal; its exit status is ours (own faults: 125).

    Example: opsctl shell
    """
    from opsctl.ops.exec import terminal_argv

    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("shell needs a terminal", hint="`opsctl exec -- COMMAND` works without one")
        words = terminal_argv(workspace(config, target), tuple(argv or ()))
    except (OpsctlError, OSError) as error:
        raise _own_fault(error) from None
    os.execvp(words[0], words)
