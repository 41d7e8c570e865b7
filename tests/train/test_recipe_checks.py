"""A wrong recipe is told before torch loads and before anything is written, by every command that reads one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import recipes
from trainer.recipe_checks import why_not_writable

# the command, and the word that it did not load torch, which takes seconds
COMMAND = """
import sys
from trainer.cli import main
status = main(sys.argv[1:])
print("with torch" if "torch" in sys.modules else "without torch")
sys.exit(status)
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(recipes.tiny_recipe(data_dir=tmp_path / "data"), encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["train", "prewarm", "preflight"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optim.lrr=1"], "tiny.yaml: optim.lrr: unknown key; did you mean optim.lr?"),
        (["drafter.mask_token_id=9999"], "drafter: mask_token_id 9999 is outside the vocabulary of 264"),
        (["verifier.path=/nowhere"], "verifier.path: /nowhere is not a folder with a config.json"),
        (["compile.cuda_graphs=true"], "compile.cuda_graphs needs a GPU, and device is cpu"),
    ],
)
def test_a_wrong_recipe_is_told_at_once(
    recipe: Path, tmp_path: Path, command: str, overrides: list[str], message: str
) -> None:
    check_refusal(tmp_path, [command, str(recipe), *overrides], message)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["resume=/nowhere/step-1"], "resume: /nowhere/step-1 is no whole checkpoint"),
        (["corpus.source=jsonl", "corpus.path=/nowhere.jsonl"], "corpus.path: cannot read /nowhere.jsonl"),
        (["corpus.data_dir={folder}/tiny.yaml/data"], "corpus.data_dir: {folder}/tiny.yaml is no folder"),
    ],
)
def test_what_a_run_could_not_read_or_write_is_told_at_once(
    recipe: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    named = [one.format(folder=tmp_path) for one in overrides]
    check_refusal(tmp_path, ["train", str(recipe), *named], message.format(folder=tmp_path))


def test_a_place_for_checkpoints_that_is_taken_is_told_at_once(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()
    message = f"checkpoints: {tmp_path}/run/checkpoints is no folder"
    check_refusal(tmp_path, ["train", str(recipe)], message, leaves=["checkpoints"])


def check_refusal(tmp_path: Path, words: list[str], message: str, *, leaves: list[str] | None = None) -> None:
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    argv = [sys.executable, "-c", COMMAND, *words]
    done = subprocess.run(argv, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout) == (2, "without torch\n"), done.stderr
    assert done.stderr.startswith("trainer: ")
    assert message in done.stderr
    assert [path.name for path in folder.iterdir()] == (leaves or [])
    assert not (tmp_path / "data").exists()


def test_where_files_could_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert why_not_writable(tmp_path) is None
    assert why_not_writable(tmp_path / "new" / "deeper") is None
    for name in ("file", "dangling"):
        assert why_not_writable(tmp_path / name / "deeper") == f"{tmp_path / name} is no folder"
