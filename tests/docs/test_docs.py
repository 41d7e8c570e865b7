"""The pages say what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from opsctl.cli.app import app
from tools.docs import DOCS, PAGES, commands

COMMANDS = list(commands(get_command(app), ("opsctl",)))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), f"run `python -m tools.docs` to write docs/{name} again"


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_every_help_has_a_sentence_and_an_example(words: tuple[str, ...], command: Any) -> None:
    assert command.help
    assert command.help.strip().splitlines()[0].endswith(".")
    if not hasattr(command, "commands"):
        assert f"Example: {' '.join(words)}" in command.help


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_every_option_says_what_it_does(words: tuple[str, ...], command: Any) -> None:
    assert [one.name for one in command.params if getattr(one, "help", "") is None] == []


def test_the_readme_names_the_two_commands() -> None:
    readme = Path("README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_no_page_holds_a_path_of_one_machine() -> None:
    for page in [Path("README.md"), *Path("docs").rglob("*.md")]:
        assert "/root/" not in page.read_text(), page
        # the image's own user is the same on every machine
        assert "/home/" not in page.read_text().replace("/home/opsctl/", ""), page
