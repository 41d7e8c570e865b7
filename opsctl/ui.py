"""The only module that prints: data to stdout (text or JSON), talk and errors to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from opsctl.errors import CommandFailed, OpsctlError
from opsctl.records.call import SCHEMA, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress


def drop(descriptor: int) -> None:
    """Point a stream elsewhere: what it holds cannot be written, and Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Around all that is written to stdout; raises CommandFailed if it takes no more, unless its reader left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop(1)
        raise CommandFailed(f"cannot write the output: {error.strerror}") from None


def flush() -> None:
    """Send what stdout still holds; raises CommandFailed."""
    with writing():
        sys.stdout.flush()


def console() -> Console:
    """A console on stdout; plain and wide where stdout is no terminal."""
    from rich.console import Console  # 40 ms: only commands that draw pay for it

    width = None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "200"))
    # rich leaves bold and dim to NO_COLOR, whose users want plain text
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(width=width, highlight=False, soft_wrap=not sys.stdout.isatty(), color_system=colours)


def document(value: Any) -> None:
    """Print one JSON document, with its schema number."""
    body = to_json(value)
    whole = {"schema": SCHEMA, **body} if isinstance(body, dict) else {"schema": SCHEMA, "items": body}
    text(json.dumps(whole, indent=2))


def json_line(value: Any) -> None:
    """Print one row of a JSON-lines stream, at once."""
    text(json.dumps(to_json(value), separators=(",", ":")))
    flush()


def show(renderable: RenderableType) -> None:
    """Print a rich renderable, or plain text, as the command's data."""
    with writing():
        console().print(renderable)


def text(value: str) -> None:
    """Print plain text as the command's data, uninterpreted."""
    with writing():
        sys.stdout.write(value + "\n")


def raw(data: bytes) -> None:
    """Pass bytes through to stdout as they are, at once."""
    with writing():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def is_screen() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextlib.contextmanager
def live(renderable: RenderableType, *, rate_hz: float = 2.0) -> Iterator[Callable[[], None]]:
    """Keep a renderable on the whole terminal while the block runs; yields what draws it at once."""
    from rich.live import Live

    with Live(renderable, console=console(), screen=True, refresh_per_second=rate_hz) as shown:
        yield shown.refresh


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", name: int = 0) -> None:
    """Print a table; cells are plain text.

    The column number `name` holds names, which a reader copies: it stays whole, however narrow the terminal is.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    cells = [[Text(cell) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        whole = max((row[index].cell_len for row in cells), default=0) if index == name else None
        drawn.add_column(column, no_wrap=index == name, min_width=whole)
    for row in cells:
        drawn.add_row(*row)
    show(drawn)


def say(message: str) -> None:
    """Tell the person at the terminal something that is not data."""
    try:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:  # then nobody can be told, and the exit code must do
        drop(2)


def is_talk_screen() -> bool:
    """Whether stderr is a terminal that can be drawn on."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def byte_bar() -> Progress:
    """A bar on stderr for bytes done of all, gone once it is stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def error(problem: OpsctlError, *, as_json: bool) -> None:
    """Say what went wrong and the way out, on stderr."""
    if as_json:
        body = {
            "kind": type(problem).__name__,
            "message": problem.message,
            "hint": problem.hint,
            "exit_code": problem.exit_code,
        }
        say(json.dumps({"schema": SCHEMA, "error": body}))
        return
    say(f"error: {problem.message}")
    if problem.hint:
        say(f"hint: {problem.hint}")
