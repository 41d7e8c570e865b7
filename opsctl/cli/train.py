"""`opsctl train`: start a run, look at it, read its log, sit at its terminal, wait for it, stop it."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, named, noun, workspace
from opsctl.cli.train_view import facts, preflight_rows, print_piece, print_verdict, record_json, row, status_json
from opsctl.errors import UsageError

_COMMAND = "opsctl.command"

train = noun("train", "Start training runs, and look at, read, join, await or stop them.")

Run = Annotated[
    str,
    typer.Argument(
        callback=named,
        help="Name or id of the run, or the id's beginning; default: the newest that lives, else the newest.",
    ),
]


class TakesCommand(TyperCommand):
    """A command after whose own words may come `--` and the words of another command, which stay as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the words after -- away and keep them in the context."""
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[place + 1 :])
            args = args[:place]
        return super().parse_args(ctx, args)


def _gpus(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise UsageError(f"--gpus {text!r} is no list of numbers", hint="for example: --gpus 5,6,7") from None


@train.command(
    cls=TakesCommand,
    options_metavar="[OPTIONS]",
    epilog="Words after -- are the command, or more words for the job's own.",
)
def start(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(help="Job of opsctl.yaml; default: the only one there is.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; default: the job's.")] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="nvidia-smi indices to lease, as in 5,6,7; default: the job's.")
    ] = None,
    share: Annotated[bool, typer.Option("--share", help="Start although others use these GPUs.")] = False,
    allow_drift: Annotated[
        bool, typer.Option("--allow-drift", help="Start although the environment is not as it was built.")
    ] = False,
    baseline: Annotated[
        str, typer.Option("--baseline", help="Good run's figures to compare with; default: the job's.")
    ] = "",
    why: Annotated[str, typer.Option("--why", help="A note that is kept with the run.")] = "",
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Start a job of opsctl.yaml, or the command after --, as a run that nobody needs to watch.

    Example: opsctl train start drafter

    Example: opsctl train start --name smoke -- python train.py --steps 10
    """
    from opsctl.ops.train import Wish
    from opsctl.ops.train import start as start_run

    wish = Wish(job, name, ctx.meta.get(_COMMAND, ()), _gpus(gpus), share, allow_drift, why, baseline=baseline)
    record = start_run(workspace(config, target), wish, say=ui.say)
    if as_json:
        ui.document(record_json(record))
        return
    ui.text(f"run {record.run_id} started\nfolder {record.folder}")
    ui.say(
        f"look: opsctl watch {record.run_id}   log: opsctl train logs -f   end: opsctl train stop {record.spec.name}"
    )


@train.command(
    cls=TakesCommand,
    options_metavar="[OPTIONS]",
    epilog="Words after -- are added to the job's preflight command, as in -- --replicas threads.",
)
def preflight(
    ctx: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Job of opsctl.yaml; default: the only one with a preflight.")
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Try a job's topology for about a minute, in its environment and on its GPUs: 0 safe, 1 not.

    Example: opsctl train preflight drafter

    Example: opsctl train preflight drafter -- --replicas threads --nproc 3
    """
    from opsctl.cli.progress import teller
    from opsctl.ops.preflight import preflight as try_topology

    words = ctx.meta.get(_COMMAND, ())
    found = try_topology(workspace(config, target), job, words=words, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text("\n".join(preflight_rows(found)))
    raise typer.Exit(0 if found.is_safe else 1)


@train.command("list")
def list_(
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """List the runs on the target, newest first.

    Example: opsctl train list
    """
    from opsctl.ops.runs import listing

    found = listing(workspace(config, target))
    if as_json:
        ui.document([status_json(one) for one in found])
        return
    columns = ("run", "kind", "state", "verdict", "step", "started", "by")
    ui.table(columns, [row(one) for one in found])


@train.command()
def status(
    run: Run = "",
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Show one run: its state, verdict and evidence, attempts, GPUs and where its files lie.

    Example: opsctl train status
    """
    from opsctl.ops.runs import status as ask

    found = ask(workspace(config, target), run)
    if as_json:
        ui.document(status_json(found))
        return
    ui.text("\n".join(f"{name:<10} {value}" for name, value in facts(found)))


@train.command()
def logs(
    run: Run = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rows: Annotated[int | None, typer.Option("--rows", "-n", min=0, help="Begin with the last N rows.")] = None,
    since_byte: Annotated[
        int | None, typer.Option("--since-byte", min=0, help="Begin at this byte of the log.")
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Print a run's log as the job wrote it, byte for byte; --json gives the byte ranges too.

    Example: opsctl train logs -f -n 50
    """
    from opsctl.ops.runs import LogPlace, log

    if rows is not None and since_byte is not None:
        raise UsageError("--rows and --since-byte both say where to begin", hint="give one of them")
    place = LogPlace(since_byte, rows)
    pieces = log(workspace(config, target), run, place=place, follow=follow, on_link=ui.say)
    try:
        for piece in pieces:
            print_piece(piece, as_json=as_json)
    finally:
        pieces.close()


@train.command()
def attach(run: Run = "", config: ConfigPath = None, target: TargetName = None) -> None:
    """Sit at the run's terminal, a real tmux session; leave it with Ctrl-b d, and the run goes on.

    Example: opsctl train attach
    """
    from opsctl.ops.runs import attach_argv

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("attach needs a terminal", hint="`opsctl train logs -f` works without one")
    argv = attach_argv(workspace(config, target), run)
    os.execvp(argv[0], argv)


@train.command()
def wait(
    run: Run = "",
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds to wait; then exit 7.")] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Wait until a run is over, hangs or fell back to eager: 0 finished, 1 failed, 4 unknown, 75 stopped.

    Example: opsctl train wait --timeout 3600 && opsctl train status
    """
    from opsctl.ops.runs import wait as wait_for
    from opsctl.ops.watch_state import exit_code

    found = wait_for(workspace(config, target), run, timeout_s=timeout)
    print_verdict(found, as_json=as_json)
    raise typer.Exit(exit_code(found.verdict.verdict))


@train.command()
def stop(
    run: Run = "",
    grace: Annotated[
        float | None,
        typer.Option("--grace", min=0, help="Seconds for a checkpoint before the kill; default: the job's."),
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Stop a run: SIGTERM, time for a checkpoint, then SIGKILL; done when no process of it is left.

    Example: opsctl train stop drafter
    """
    from opsctl.ops.runs import stop as stop_run

    found = stop_run(workspace(config, target), run, grace_s=grace, on_progress=ui.say)
    print_verdict(found, as_json=as_json)
