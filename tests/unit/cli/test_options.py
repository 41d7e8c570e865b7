"""A noun without a command is answered with its help."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli.app import run


@pytest.mark.parametrize("words", [[], ["env"], ["train"], ["cache"], ["container"]])
def test_a_bare_noun_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"Usage: {' '.join(['opsctl', *words])} [OPTIONS] COMMAND")
    assert said.out == ""


@pytest.mark.parametrize("words", [["env", "activate"], ["env", "verify"], ["train", "stop"], ["watch", "--once"]])
def test_an_empty_word_never_means_the_default(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # out of reach of any opsctl.yaml, should the word be taken after all
    assert run([*words, ""]) == 2
    assert "an empty word is no name" in capsys.readouterr().err
