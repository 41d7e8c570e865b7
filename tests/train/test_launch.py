"""Several ranks through the trainer's own command: they end as one, resume as one, and say who failed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.sshd import free_port
from tests.support.until import until
from tests.train.commands import PACKAGE, environment, run
from tests.train.conftest import ColdPrewarm
from tests.train.test_train import assert_same_checkpoint, metrics_of, result_of, steps_of
from trainer.endings import first_failure
from trainer.errors import ConfigError
from trainer.launch import Launched, launch
from trainer.nodes import Nodes

LONG = ("steps=100000", "checkpoint.every_steps=0")


@contextmanager
def ranks_in(folder: Path, recipe: Path, cache: Path, *words: str, num: int = 2) -> Iterator[subprocess.Popen[str]]:
    """Ranks that train the recipe in `folder`; whatever is left of them is ended at the end."""
    folder.mkdir(exist_ok=True)
    words = (sys.executable, "-m", "trainer", "train", str(recipe), "--nproc", str(num), *words)
    environ = {"GLOO_SOCKET_IFNAME": "lo", **environment(cache, PACKAGE)}
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
    found = {one: _rank_of(one) for one in psutil.Process(launcher.pid).children()}
    return sorted((one for one, rank in found.items() if rank is not None), key=lambda one: found[one] or 0)


def _rank_of(process: psutil.Process) -> int | None:
    """Which rank it is; None of what is none, or ends while we look."""
    try:
        return int(process.environ()["RANK"])
    except (KeyError, psutil.Error):
        return None


def rank_result(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"result.{rank}.json").read_text(encoding="utf-8"))
    return found


def end_of(launcher: subprocess.Popen[str], *, within_s: float = 400.0) -> tuple[int, str]:
    out, _ = launcher.communicate(timeout=within_s)
    return launcher.returncode, out


@pytest.mark.slow
@pytest.mark.long
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

    resume = f"resume={straight / 'checkpoints/step-3'}"
    nodes = ("--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    with (
        ranks_in(resumed, tiny_recipe, cold_prewarm.cache, *nodes, resume, num=1) as first_node,
        ranks_in(resumed, tiny_recipe, cold_prewarm.cache, *nodes, "--node-rank", "1", resume, num=1) as second_node,
    ):
        ends = [end_of(first_node), end_of(second_node)]
    assert [code for code, _ in ends] == [0, 0], ends
    assert result_of(resumed)["ranks"] == 2
    assert_same_checkpoint(straight / "checkpoints/step-6", resumed / "checkpoints/step-6")
    assert [line["loss"] for line in steps_of(resumed)] == [line["loss"] for line in steps_of(straight)[3:]]


@pytest.mark.slow
def test_a_stop_ends_all_ranks_after_the_same_step_with_75(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        until(lambda: len(steps_of(folder)) >= 3, within_s=400)
        ranks = ranks_of(launcher)
        launcher.send_signal(signal.SIGTERM)
        code, out = end_of(launcher)
        assert code == 75, out
        assert not [one for one in ranks if one.is_running()]
    result = result_of(folder)
    assert (result["status"], result["cause"], result["exit_code"]) == ("stopped", "SIGTERM", 75)
    assert rank_result(folder, 0)["steps"] == rank_result(folder, 1)["steps"] == len(steps_of(folder))
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_last_step_is_kept(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        until(lambda: len(steps_of(folder)) >= 3, within_s=400)
        os.kill(ranks_of(launcher)[1].pid, signal.SIGKILL)
        code, out = end_of(launcher)
    assert code == 1, out
    assert "rank 1 failed first: killed by SIGKILL" in out
    result = result_of(folder)
    assert (result["status"], result["rank"], result["cause"]) == ("failed", 1, "killed by SIGKILL")
    assert result["endings"][0]["cause"].startswith("PeerLost: rank 0 lost another rank")
    assert Path(result["checkpoint"]).name == f"step-{len(steps_of(folder))}"


@pytest.mark.slow
def test_when_the_launcher_is_killed_no_rank_outlives_it(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with ranks_in(folder, tiny_recipe, cold_prewarm.cache, *LONG) as launcher:
        ranks = until(lambda: len(found := ranks_of(launcher)) == 2 and metrics_of(folder) and found, within_s=400)
        launcher.kill()
        psutil.wait_procs(ranks, timeout=60)
        assert not [one for one in ranks if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_all_ranks_with_3(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    with ranks_in(tmp_path / "run", tiny_recipe, cold_prewarm.cache, "optim.lr=1e38", "steps=50") as launcher:
        code, out = end_of(launcher)
    assert code == 3, out
    result = result_of(tmp_path / "run")
    assert (result["status"], [one["exit_code"] for one in result["endings"]]) == ("failed", [3, 3])
    assert "stopped before the update" in result["cause"]


def test_no_process_at_all_is_a_wrong_number(tiny_recipe: Path, tmp_path: Path) -> None:
    done = run("train", str(tiny_recipe), "--nproc", "0", cache=tmp_path / "cache")
    assert done.returncode == 2
    assert "--nproc 0: at least one process must train" in done.stderr


def launch_script(folder: Path, script: str, *, num_ranks: int = 2, **options: Any) -> Launched:
    """Launch a few lines of Python as ranks; what each leaves in `result.<rank>` of the folder is its result."""
    words = ("-c", f"import os, pathlib, signal, sys, time\nfolder = pathlib.Path({str(folder)!r})\n{script}")
    launched = launch(words, num_ranks=num_ranks, result_file=lambda rank: folder / f"result.{rank}", **options)
    assert not [one.name for one in threading.enumerate() if "KeepAlive" in one.name], "the rendezvous has ended, too"
    return launched


def test_each_rank_sees_one_gpu_as_its_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    script = """
seen = f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.environ['LOCAL_RANK']} {os.environ['WORLD_SIZE']}"
(folder / os.environ["RANK"]).write_text(seen)
"""
    launch_script(tmp_path, script, num_ranks=3, uses_gpus=True)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["5 0 3", "6 0 3", "7 0 3"]


def test_ranks_get_the_time_they_were_promised_and_no_more(tmp_path: Path) -> None:
    script = """
if os.environ["RANK"] == "1":
    while not (folder / "alive").exists(): time.sleep(0.01)
    (folder / "failed").touch()
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(1200):
    (folder / "alive").touch()
    time.sleep(0.05)
"""
    launched = launch_script(tmp_path, script, uses_gpus=False, shutdown_timeout_s=1)
    failed, last_sign = ((tmp_path / name).stat().st_mtime for name in ("failed", "alive"))
    assert last_sign - failed < 25  # the agent's own answer to a failed rank is 30 s, whatever it was given
    assert [one.cause for one in launched.endings] == ["killed by SIGKILL", "ended without a result, with status 3"]
    failure = first_failure(launched.endings)
    assert failure is not None
    assert failure.rank == 1  # not the one that was ended for it


def two_nodes(folder: Path, script: str, *, limit_s: int = 60) -> list[dict[str, Any] | None]:
    """Launch the same lines as one rank on each of two nodes; what each node came to, None for one that was killed."""
    words = (sys.executable, "-m", "tests.train.node", str(folder), f"import os, signal, sys\n{script}")
    place = f"127.0.0.1:{free_port()}", str(limit_s)
    environ = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    nodes = [
        subprocess.Popen((*words, str(rank), *place), stdout=subprocess.PIPE, text=True, env=environ)
        for rank in range(2)
    ]
    try:
        found = [node.communicate(timeout=400)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    return [json.loads(text) if text else None for text in found]


def test_all_nodes_hear_how_the_ranks_of_all_ended(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path, "sys.exit(3 * int(os.environ['RANK']))")
    assert first == second
    assert first is not None
    told = ["ended without a result", "ended without a result, with status 3"]
    assert [(one["rank"], one["cause"]) for one in first["endings"]] == list(enumerate(told))


def test_the_ranks_of_a_node_that_falls_silent_count_as_lost(tmp_path: Path) -> None:
    script = "if os.environ['RANK'] == '1': os.kill(os.getppid(), signal.SIGKILL)"
    first, second = two_nodes(tmp_path, script, limit_s=1)
    assert second is None
    assert first is not None
    told = ["ended without a result", "node 1 did not say how its ranks ended"]
    assert [one["cause"] for one in first["endings"]] == told


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ((0, 0, "host:29400"), "--nnodes 0: at least one machine must train"),
        ((2, 2, "host:29400"), "--node-rank 2: with --nnodes 2 it must be below that"),
        ((1, 1, "host:29400"), "--node-rank 1: with --nnodes 1"),
        ((2, -1, "host:29400"), "--node-rank -1: with --nnodes 2"),
        ((2, 0, "127.0.0.1:0"), "--rdzv-endpoint 127.0.0.1:0: it must be HOST:PORT"),
        ((2, 0, "host:"), "must be HOST:PORT"),
        ((2, 0, ":29400"), "must be HOST:PORT"),
        ((2, 0, "host:65536"), "must be HOST:PORT"),
    ],
)
def test_a_node_that_cannot_be_placed_is_told(place: tuple[int, int, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Nodes(*place)


def test_a_result_of_an_earlier_launch_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "result.0").write_text('{"exit_code": 0, "ended_at": 1.0}', encoding="utf-8")
    launched = launch_script(tmp_path, "", num_ranks=1, uses_gpus=False)
    assert launched.endings[0].cause == "ended without a result"
    assert launched.stopped_by is None


def test_the_callers_signal_handlers_come_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    launch_script(tmp_path, "", num_ranks=1, uses_gpus=False)
    assert signal.getsignal(signal.SIGTERM) is before
