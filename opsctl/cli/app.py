"""The entry point: joins the nouns and turns every ending into an exit code. Only this file exits."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from opsctl import __version__, ui
from opsctl.cli import cache_compare, cache_exchange, env_adopt, env_compare
from opsctl.cli.cache import cache
from opsctl.cli.container import container
from opsctl.cli.diagnose import diagnose
from opsctl.cli.doctor import doctor
from opsctl.cli.env import env
from opsctl.cli.exec import WORDS, exec_, shell
from opsctl.cli.files import get, put
from opsctl.cli.init import init
from opsctl.cli.options import noun
from opsctl.cli.status import status
from opsctl.cli.train import train
from opsctl.cli.watch import watch
from opsctl.errors import (
    EXIT_INTERRUPTED,
    EXIT_READER_GONE,
    EXIT_TERMINATED,
    OpsctlError,
    UsageError,
    foreseen,
)
from opsctl.records.call import PROTOCOL

app = noun("opsctl", "Environments, training runs and compile caches on GPU hosts that you own.")
app.command()(init)
app.command("exec", context_settings=WORDS)(exec_)
app.command(context_settings=WORDS)(shell)
app.command()(put)
app.command()(get)
app.command()(watch)
app.command()(diagnose)
app.command()(status)
app.command()(doctor)
app.add_typer(env_adopt.add_to(env_compare.add_to(env)))
app.add_typer(container)
app.add_typer(train)
app.add_typer(cache_exchange.add_to(cache_compare.add_to(cache)))


def _show_version(wanted: bool) -> None:
    if wanted:
        ui.text(f"opsctl {__version__} (agent protocol {PROTOCOL})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


class Terminated(BaseException):
    """SIGTERM, raised in the main thread so that open calls are closed on the way out."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


def _save_bug() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="opsctl-bug-", suffix=".txt")
    with os.fdopen(descriptor, "w") as file:
        file.write(f"opsctl {__version__}, Python {sys.version}\nargv: {sys.argv[1:]}\n\n")
        traceback.print_exc(file=file)
    return Path(name)


def _bug(*, as_json: bool) -> int:
    try:
        path = _save_bug()
    except OSError:  # nowhere to keep it
        traceback.print_exc()
        path = Path(os.devnull)
    problem = OpsctlError(f"a bug in opsctl; its traceback is in {path}", hint="please report it with that file")
    ui.error(problem, as_json=as_json)
    return problem.exit_code


def _leave_quietly() -> int:
    ui.drop(1)
    return EXIT_READER_GONE


def _refused(error: OpsctlError, *, as_json: bool) -> int:
    try:
        sys.stdout.flush()
    except OSError:  # then that is the error itself, or matters less
        ui.drop(1)
    ui.error(error, as_json=as_json)
    return error.exit_code


def _wants_json(arguments: list[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code, whatever happened."""
    as_json = _wants_json(arguments)
    try:
        status = app(arguments, prog_name="opsctl", standalone_mode=False)
        ui.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        problem = UsageError(error.format_message(), hint="`--help` after any command shows what it takes")
        ui.error(problem, as_json=as_json)
        return problem.exit_code
    except OpsctlError as error:
        return _refused(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except BrokenPipeError:
        return _leave_quietly()
    except SystemExit as error:  # typer's own answer to a reader that left; nothing else here exits
        return _leave_quietly() if isinstance(error.__context__, BrokenPipeError) else 1
    except Exception as error:  # noqa: BLE001 - the boundary: an unforeseen error is our bug, and is kept
        refused = foreseen(error) if isinstance(error, OSError) else None
        return _refused(refused, as_json=as_json) if refused else _bug(as_json=as_json)


def _open_closed_streams() -> None:
    """Give a stream that we were started without (`>&-`) a file that refuses, before another file takes its place."""
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # reading alone refuses our output
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the lowest that is free is this one
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 - they live as long as we do, and have no path
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 - as above


def _forget_senseless_size() -> None:
    """COLUMNS and LINES that are no positive number say nothing: neither to us nor to the libraries that draw."""
    for name in ("COLUMNS", "LINES"):
        value = os.environ.get(name, "1")
        if not value.isdecimal() or int(value) == 0:
            del os.environ[name]


def main() -> None:
    """The `opsctl` command."""
    _open_closed_streams()
    _forget_senseless_size()
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets ? for what it cannot show
    status = run(sys.argv[1:])
    gc.freeze()  # else the interpreter looks once more through all that was loaded: 50 ms
    sys.exit(status)
