"""A document that a user names: refused before the work where it would replace what is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.cli import main
from trainer.files import output_file


@pytest.mark.parametrize("command", ["prewarm", "preflight"])
def test_a_result_does_not_replace_a_fifo(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SystemExit) as ended:
        main([command, "no-recipe.yaml", "--result", str(tmp_path / "fifo")])
    assert ended.value.code == 2
    assert f"{tmp_path}/fifo is no regular file" in capsys.readouterr().err
    assert (tmp_path / "fifo").is_fifo()


def test_a_link_is_followed_and_one_to_nothing_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "lost").symlink_to("nowhere")
    assert output_file(str(tmp_path / "link")) == tmp_path / "file"
    for name in ("lost", "no/file"):
        with pytest.raises(ValueError, match="there"):
            output_file(str(tmp_path / name))
