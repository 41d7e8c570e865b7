"""Several ranks through the trainer's own command: they end as one, resume as one, and say who failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.until import until
from tests.train.commands import PACKAGE, environment, run
from tests.train.conftest import ColdPrewarm
from tests.train.test_train import assert_same_checkpoint, metrics_of, result_of, steps_of

pytestmark = pytest.mark.slow
LONG = ("steps=100000", "checkpoint.every_steps=0")


@contextmanager
def ranks_in(folder: Path, recipe: Path, cache: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """Two ranks that train the recipe in `folder`; whatever is left of them is ended at the end."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, "-m", "trainer", "train", str(recipe), *overrides, "--nproc", "2"]
    environ = environment(cache, PACKAGE)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    launcher = subprocess.Popen(words, cwd=folder, env=environ, text=True, **pipes)
    try:
        yield launcher
    finally:
        for process in ranks_of(launcher):
            process.kill()
        launcher.kill()
        launcher.communicate()


def ranks_of(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """The launcher's ranks, in order."""
    if launcher.poll() is not None:
        return []
    children = psutil.Process(launcher.pid).children()
    return sorted((one for one in children if "RANK" in one.environ()), key=lambda one: int(one.environ()["RANK"]))


def rank_result(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"result.{rank}.json").read_text(encoding="utf-8"))
    return found


def end_of(launcher: subprocess.Popen[str], *, within_s: float = 200.0) -> tuple[int, str]:
    out, _ = launcher.communicate(timeout=within_s)
    return launcher.returncode, out


def test_ranks_end_and_resume_as_one(cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    with ranks_in(straight, tiny_recipe, cold_prewarm.cache) as launcher:
        code, out = end_of(launcher)
    assert code == 0, out
    result = result_of(straight)
    assert (result["status"], result["ranks"], result["steps"]) == ("finished", 2, 6)
    assert [one["exit_code"] for one in result["endings"]] == [0, 0]
    first, second = (rank_result(straight, rank) for rank in (0, 1))
    assert first["loss_last"] == second["loss_last"] < first["loss_first"]
    assert second["counters"]["fx_misses"] == second["counters"]["aot_misses"] == 0
    assert second["counters"]["fx_hits"] > 0
    assert first["tokens"] == second["tokens"] > 6 * 128  # of both
    assert out.count("step 2/6") == 1  # one rank talks

    with ranks_in(resumed, tiny_recipe, cold_prewarm.cache, f"resume={straight / 'checkpoints/step-3'}") as launcher:
        code, out = end_of(launcher)
    assert code == 0, out
    assert_same_checkpoint(straight / "checkpoints/step-6", resumed / "checkpoints/step-6")
    assert [line["loss"] for line in steps_of(resumed)] == [line["loss"] for line in steps_of(straight)[3:]]


def test_a_stop_ends_all_ranks_after_the_same_step_with_75(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        until(lambda: len(steps_of(folder)) >= 3, within_s=200)
        ranks = ranks_of(launcher)
        launcher.send_signal(signal.SIGTERM)
        code, out = end_of(launcher)
        assert code == 75, out
        assert not [one for one in ranks if one.is_running()]
    result = result_of(folder)
    assert (result["status"], result["cause"], result["exit_code"]) == ("stopped", "SIGTERM", 75)
    assert rank_result(folder, 0)["steps"] == rank_result(folder, 1)["steps"] == len(steps_of(folder))
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"


def test_a_killed_rank_is_named_and_the_last_step_is_kept(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        until(lambda: len(steps_of(folder)) >= 3, within_s=200)
        os.kill(ranks_of(launcher)[1].pid, signal.SIGKILL)
        code, out = end_of(launcher)
    assert code == 1, out
    assert "rank 1 failed first: killed by SIGKILL" in out
    result = result_of(folder)
    assert (result["status"], result["rank"], result["cause"]) == ("failed", 1, "killed by SIGKILL")
    assert result["endings"][0]["cause"].startswith("PeerLost: rank 0 lost another rank")
    assert Path(result["checkpoint"]).name == f"step-{len(steps_of(folder))}"


def test_when_the_launcher_is_killed_no_rank_outlives_it(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        ranks = until(lambda: len(found := ranks_of(launcher)) == 2 and metrics_of(folder) and found, within_s=200)
        launcher.kill()
        psutil.wait_procs(ranks, timeout=60)
        assert not [one for one in ranks if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_no_process_at_all_is_a_wrong_number(tiny_recipe: Path, tmp_path: Path) -> None:
    done = run("train", str(tiny_recipe), "--nproc", "0", cache=tmp_path / "cache")
    assert done.returncode == 2
    assert "--nproc 0: at least one process must train" in done.stderr
