"""Prewarming in processes of their own: cold once, then warm wherever the cache lies, and training finds it all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.train.commands import PACKAGE, run
from tests.train.conftest import ColdPrewarm
from trainer.errors import EXIT_CONFIG

pytestmark = pytest.mark.slow


def test_a_cold_prewarm_compiles_every_function_and_says_so(cold_prewarm: ColdPrewarm) -> None:
    report = cold_prewarm.report
    first = report["ranks"][0]
    assert report["functions"] == ["mask_full_attention", "layer_full_attention", "loss_chunk"]
    assert report["warm"] is first["warm"] is False
    assert (first["fx_hits"], first["fx_misses"], first["aot_misses"]) == (0, 5, 3)
    assert first["compiler_starts"] >= first["new_binaries"] == len(cold_prewarm.binaries) >= 5
    assert report["recompiles"] == report["graph_breaks"] == 0


def test_the_other_rank_loads_what_the_first_compiled(cold_prewarm: ColdPrewarm) -> None:
    report = cold_prewarm.report
    _, other = report["ranks"]
    assert report["others_loaded"] is other["warm"] is True
    assert (other["fx_hits"], other["fx_misses"], other["aot_hits"], other["aot_misses"]) == (5, 0, 3, 0)
    assert other["compiler_starts"] == other["new_binaries"] == 0
    assert report["fx_hits"] == 5  # of both


def test_after_a_move_and_with_edited_comments_it_is_warm(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(cold_prewarm.cache, tmp_path / "moved"))
    edited = Path(shutil.copytree(PACKAGE, tmp_path / "code" / "trainer"))
    for source in edited.rglob("*.py"):
        text = source.read_text(encoding="utf-8")
        source.write_text(text.replace("annotations\n", "annotations\n\n# a new comment\n", 1), encoding="utf-8")
    result = tmp_path / "result.json"
    done = run("prewarm", str(tiny_recipe), "--require-warm", "--result", str(result), cache=moved, package=edited)
    report = json.loads(result.read_text(encoding="utf-8"))
    assert done.returncode == 0, done.stdout
    assert report["warm"] is True
    assert (report["fx_hits"], report["aot_hits"]) == (5, 3)
    assert report["compiler_starts"] == report["new_binaries"] == 0


def test_a_binary_that_is_gone_is_not_called_warm(cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(cold_prewarm.cache, tmp_path / "damaged"))
    gone = next(path for path in cold_prewarm.binaries if path.name.endswith(".main.so"))
    (damaged / gone.relative_to(cold_prewarm.cache)).unlink()
    done = run("prewarm", str(tiny_recipe), "--require-warm", "--json", cache=damaged)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["fx_misses"] == report["aot_misses"] == 0  # all graphs are found: hits alone prove nothing
    assert report["compiler_starts"] == 1


def test_training_after_a_prewarm_compiles_nothing(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    before = set(cold_prewarm.cache.rglob("*.so"))
    done = run("train", str(tiny_recipe), "steps=2", cache=cold_prewarm.cache, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert set(cold_prewarm.cache.rglob("*.so")) == before
    counters = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["counters"]
    assert (counters["fx_hits"], counters["fx_misses"], counters["aot_hits"], counters["aot_misses"]) == (5, 0, 3, 0)
    assert counters["recompiles"] == counters["graph_breaks"] == 0


def test_cuda_graphs_without_a_gpu_are_refused(tiny_recipe: Path, tmp_path: Path) -> None:
    done = run("prewarm", str(tiny_recipe), "device=cpu", "compile.cuda_graphs=true", cache=tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert "compile.cuda_graphs needs a GPU" in done.stderr
