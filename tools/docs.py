"""Writes docs/cli.md, docs/exit-codes.md and docs/config.md from the code; a test compares them.

python -m tools.docs          write them
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from opsctl.cli.app import app
from opsctl.errors import EXIT_MEANINGS
from opsctl.ops.init import example

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 100


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, groups before their members."""
    yield words, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from commands(inner, (*words, name))


def help_text(command: Any, words: tuple[str, ...]) -> str:
    """What `--help` prints, at a fixed width."""
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}
    context = command.make_context(" ".join(words), [], resilient_parsing=True, **settings)
    return str(command.get_help(context)).rstrip()


def cli() -> str:
    """docs/cli.md."""
    parts = ["# Commands\n\nWritten from the commands' own help by `python -m tools.docs`.\n"]
    for words, command in commands(get_command(app), ("opsctl",)):
        parts.append(f"## {' '.join(words)}\n\n```\n{help_text(command, words)}\n```\n")
    return "\n".join(parts)


def exit_codes() -> str:
    """docs/exit-codes.md."""
    rows = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_MEANINGS.items())
    return f"""# Exit codes

Written from `opsctl/errors.py` by `python -m tools.docs`.

| code | meaning |
|---|---|
{rows}

`opsctl watch` and `opsctl train wait` tell the run's fate: 0 finished, 1 crashed, hung or eager, 4 unknown,
75 stopped with a checkpoint. `opsctl exec` passes the remote status through.
The trainer itself: 0 finished, 2 configuration, 3 non-finite loss, 4 compile discipline broken, 75 stopped early
with a good checkpoint.
"""


def config() -> str:
    """docs/config.md."""
    return f"""# opsctl.yaml

Written from `opsctl/opsctl.example.yaml` by `python -m tools.docs`. All keys with their defaults:

```yaml
{example()}```

The nearest `opsctl.yaml` in the current folder or above it counts; `--config` or `OPSCTL_CONFIG` name another.
An unknown key is an error with its line and the nearest known key (exit code 3); so is a key that stands twice.
"""


PAGES = {"cli.md": cli, "exit-codes.md": exit_codes, "config.md": config}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    typer.run(main)
