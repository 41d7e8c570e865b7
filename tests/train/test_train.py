"""Training runs through the command line's own entry: figures, exact resuming, and every way to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import yaml
from safetensors.torch import load_file

from tests.support.until import until
from tests.train.cases import drafter_config, packed_anchors, packed_batch
from trainer.cli import main
from trainer.model import Drafter
from trainer.optim import make_optimizer
from trainer.sections import OptimConfig
from trainer.step import Frozen, StepInputs, step_functions, step_loss

# a run in this process must not fail where torch warns about torch, as dynamo and inductor do while they compile
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

Train = Callable[..., int]


@pytest.fixture
def train(tiny_recipe: Path, cold_prewarm: object, inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Run the tiny recipe in a folder, in this process: `train(folder, "steps=3")` returns the exit status.

    What it compiles was compiled by one prewarm, so that the tests do not wait for a compiler.
    """

    def run(folder: Path, *overrides: str) -> int:
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return main(["train", str(tiny_recipe), *overrides])

    return run


def result_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return content


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The lines that a run has written; the last may be half there while it writes on."""
    path = folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics_of(folder) if line["phase"] == "train" and "loss" in line]


@contextlib.contextmanager
def when(condition: Callable[[], Any], act: Callable[[], Any]) -> Iterator[None]:
    """Run `act` in a thread as soon as `condition` holds, if it does before the block ends."""
    has_ended = threading.Event()

    def wait_and_act() -> None:
        until(lambda: has_ended.is_set() or condition(), within_s=480)
        if not has_ended.is_set():
            act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def assert_same_checkpoint(first: Path, second: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
        one, other = load_file(first / name), load_file(second / name)
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), f"{name}: {key}"
    states = [json.loads((folder / "state.json").read_text(encoding="utf-8")) for folder in (first, second)]
    for key in ("step", "tokens", "data", "contract"):
        assert states[0][key] == states[1][key]


def test_a_finished_run_leaves_figures_checkpoints_and_its_recipe(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert train(folder, "optim.lr=1e-3") == 0
    result = result_of(folder)
    assert (result["status"], result["steps"], result["num_steps"], result["cause"]) == ("finished", 6, 6, None)
    assert result["loss_last"] < result["loss_first"]
    assert Path(result["checkpoint"]) == folder / "checkpoints" / "step-6"
    assert result["tau_before"] >= 1.0
    for name in ("tau_after", "lookup_tau", "looping_share", "tokens_per_s", "compile_s", "seconds"):
        assert isinstance(result[name], float), name
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step-3", "step-6"}
    assert yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))["optim"]["lr"] == 1e-3

    phases = [line["phase"] for line in metrics_of(folder)]
    order = list(dict.fromkeys(phases))
    assert [phase for phase in order if phase != "responses"] == [
        "prepare", "verifier", "compile", "eval", "train", "checkpoint", "end",
    ]  # fmt: skip
    steps = steps_of(folder)
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    wanted = {"loss", "tokens", "tokens_per_s", "lr", "grad_norm", "compiles", "recompiles", "graph_breaks"}
    assert all(wanted | {"memory_allocated_mib", "num_steps"} <= line.keys() for line in steps)
    assert {(line["recompiles"], line["graph_breaks"]) for line in steps} == {(0, 0)}
    assert result["counters"]["fx_misses"] == result["counters"]["aot_misses"] == 0
    assert len({line["compiles"] for line in steps}) == 1
    assert "step 2/6  loss " in capsys.readouterr().out
    # evaluations, checkpoints and the last, not full batch of an epoch lay in between, and compiled nothing
    state = json.loads((folder / "checkpoints" / "step-6" / "state.json").read_text(encoding="utf-8"))
    assert state["data"]["epoch"] >= 1
    assert result["counters"]["compiles"] + result["counters"]["lazy_backwards"] == steps[0]["compiles"]


def test_going_on_from_a_checkpoint_equals_a_straight_run_bit_for_bit(train: Train, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    assert train(straight) == 0
    assert train(resumed, f"resume={straight / 'checkpoints' / 'step-3'}") == 0
    assert_same_checkpoint(straight / "checkpoints" / "step-6", resumed / "checkpoints" / "step-6")
    assert [line["loss"] for line in steps_of(resumed)] == [line["loss"] for line in steps_of(straight)[3:]]
    assert result_of(resumed)["loss_first"] == result_of(straight)["loss_first"]
    assert result_of(resumed)["tau_before"] == result_of(straight)["tau_before"]


def test_hidden_states_from_files_train_the_same_drafter(train: Train, tmp_path: Path) -> None:
    online, stored = tmp_path / "online", tmp_path / "stored"
    assert train(online) == 0
    assert train(stored, "verifier.hidden_states=stored") == 0
    losses = [[line["loss"] for line in steps_of(folder)] for folder in (online, stored)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert result_of(stored)["counters"]["fx_misses"] == 0
    assert any(line["phase"] == "states" for line in metrics_of(stored))


def test_a_stopped_run_keeps_its_last_step_and_goes_on_as_if_never_stopped(train: Train, tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    with when(lambda: len(steps_of(stopped)) >= 4, terminate_self):
        assert train(stopped, "steps=100000", "checkpoint.every_steps=0") == 75
    result = result_of(stopped)
    step = result["steps"]
    assert (result["status"], result["cause"], result["exit_code"]) == ("stopped", "SIGTERM", 75)
    assert result["checkpoint"] == str(stopped / "checkpoints" / f"step-{step}")
    assert step == len(steps_of(stopped))
    options = ("steps=100000", "checkpoint.every_steps=0")
    with when(lambda: len(steps_of(stopped)) >= step + 3, terminate_self):
        assert train(stopped, *options) == 75
    total = result_of(stopped)["steps"]
    assert result_of(stopped)["resumed_from"] == str(stopped / "checkpoints" / f"step-{step}")
    with when(lambda: len(steps_of(straight)) >= total, terminate_self):
        assert train(straight, "steps=100000", f"checkpoint.every_steps={total}") == 75
    assert_same_checkpoint(stopped / "checkpoints" / f"step-{total}", straight / "checkpoints" / f"step-{total}")


def test_a_stop_whose_last_step_cannot_be_kept_is_a_failure(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def take_the_place_and_terminate() -> None:
        (folder / "checkpoints").touch()
        terminate_self()

    with when(lambda: len(steps_of(folder)) >= 2, take_the_place_and_terminate), pytest.raises(NotADirectoryError):
        train(folder, "steps=100000", "checkpoint.every_steps=0")
    result = result_of(folder)
    assert (result["status"], result["exit_code"], result["error"]) == ("failed", 1, "NotADirectoryError")


def test_a_stop_while_preparing_ends_with_75_and_nothing_half_made(train: Train, tmp_path: Path) -> None:
    folder, data = tmp_path / "run", tmp_path / "data"
    seen = lambda: any(line["phase"] == "verifier" for line in metrics_of(folder))  # noqa: E731 - a condition, used once
    with when(seen, terminate_self):
        assert train(folder, f"corpus.data_dir={data}", "verifier.demo.steps=100000") == 75
    result = result_of(folder)
    assert (result["status"], result["phase"], result["checkpoint"]) == ("stopped", "prepare", None)
    assert not [path for path in data.iterdir() if path.is_dir()]


def test_a_stop_while_compiling_ends_with_75(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
    with when(lambda: metrics_of(folder)[-1:] and metrics_of(folder)[-1]["phase"] == "compile", terminate_self):
        assert train(folder) == 75
    assert (result_of(folder)["phase"], result_of(folder)["checkpoint"]) == ("compile", None)


def test_a_loss_that_is_not_finite_stops_before_the_update(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert train(folder, "optim.lr=1e38", "steps=50", "checkpoint.every_steps=1", "checkpoint.keep=99") == 3
    result = result_of(folder)
    assert result["status"] == "failed"
    assert "stopped before the update" in result["cause"]
    assert 0 < result["steps"] < 50
    assert all(line["loss"] is not None for line in steps_of(folder))
    assert not (folder / "checkpoints" / f"step-{result['steps'] + 1}").exists()


def test_a_switch_that_silences_torch_ends_with_2(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_SUPPRESS_ERRORS", "1")
    assert train(tmp_path / "run") == 2
    assert "TORCHDYNAMO_SUPPRESS_ERRORS=1" in result_of(tmp_path / "run")["cause"]


def test_another_seed_does_not_resume_a_checkpoint(train: Train, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "steps=1") == 0
    assert train(tmp_path / "run", "steps=1", "seed=1") == 2
    assert "seed: saved 0, recipe 1" in result_of(tmp_path / "run")["cause"]
    assert train(tmp_path / "run", "steps=1", "seed=1", "resume=none") == 0


def test_a_drafter_overfits_one_batch() -> None:
    config = drafter_config(block_size=4, hidden_size=32, head_dim=8)
    drafter = Drafter(config)
    optimizer = make_optimizer(drafter, OptimConfig(lr=1e-2))
    frozen = Frozen(torch.randn(30, 32), torch.randn(30, 32))
    inputs = StepInputs.make(packed_batch(), packed_anchors(), config, gamma=4.0, chunk_slots=16)
    target_hidden, functions = torch.randn(2, 24, config.context_size), step_functions(config, "dense")
    losses = []
    for _ in range(150):
        sums = step_loss(drafter, functions, frozen, inputs, target_hidden, chunk_slots=16)
        loss = sums.weighted_ce / sums.weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2.5
    assert losses[-1] < 0.05
    assert sums.is_correct_L.all()
