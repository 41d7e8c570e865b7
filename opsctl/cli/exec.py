"""`opsctl exec`: one command inside the target, its status passed through."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, TargetName, workspace
from opsctl.errors import EXEC_FAULT, EXEC_TIMED_OUT, OpsctlError, TimedOut


def _pass_on(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.buffer.write(data)
    target.buffer.flush()


def exec_(
    argv: Annotated[list[str], typer.Argument(help="The command and its words, after --.")],
    config: ConfigPath = None,
    target: TargetName = None,
) -> None:
    """Run one command inside the target; its exit status is ours (own faults: 125, time-out: 124).

    Example: opsctl exec -- nvidia-smi -L
    """
    try:
        from opsctl.ops.exec import run

        outcome = run(workspace(config, target), tuple(argv), on_output=_pass_on)
    except OpsctlError as error:
        ui.error(error, as_json=False)
        raise typer.Exit(EXEC_TIMED_OUT if isinstance(error, TimedOut) else EXEC_FAULT) from None
    raise typer.Exit(128 + outcome.signal if outcome.signal else outcome.code or 0)
