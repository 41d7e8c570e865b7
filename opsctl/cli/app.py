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
    path = _save_bug()
    problem = OpsctlError(f"a bug in opsctl; its traceback is in {path}", hint="please report it with that file")
    ui.error(problem, as_json=as_json)
    return problem.exit_code


def _leave_quietly() -> int:
    """The reader of stdout is gone: point stdout elsewhere, or Python complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EXIT_READER_GONE


def _wants_json(arguments: list[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code, whatever happened."""
    as_json = _wants_json(arguments)
    try:
        status = app(arguments, prog_name="opsctl", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as error:
        problem = UsageError(error.format_message(), hint="`--help` after any command shows what it takes")
        ui.error(problem, as_json=as_json)
        return problem.exit_code
    except OpsctlError as error:
        ui.error(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Terminated:
        return EXIT_TERMINATED
    except BrokenPipeError:
        return _leave_quietly()
    except SystemExit as error:  # typer's own answer to a reader that left; nothing else here exits
        return _leave_quietly() if isinstance(error.__context__, BrokenPipeError) else 1
    except Exception:  # noqa: BLE001 - the boundary: an unforeseen error is our bug, and is kept
        return _bug(as_json=as_json)


def main() -> None:
    """The `opsctl` command."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 gets ? for what it cannot show
    status = run(sys.argv[1:])
    gc.freeze()  # else the interpreter looks once more through all that was loaded: 50 ms
    sys.exit(status)
