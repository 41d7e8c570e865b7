"""What a run tells while it runs, and how it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer.compile import Counters
from trainer.errors import NonFiniteError
from trainer.metrics import MetricsFile, compile_fields, memory_allocated_mib, step_line
from trainer.result import Result
from trainer.sections import LogConfig


def test_every_line_stands_on_disk_at_once_and_carries_phase_and_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, num_steps=9) as metrics:
        metrics.begin("compile")
        metrics.step = 3
        metrics.begin("train")
        metrics.write(loss=1.5, tokens=7)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["phase"], line["step"], line["num_steps"]) for line in lines] == [
        ("compile", 0, 9),
        ("train", 3, 9),
        ("train", 3, 9),
    ]
    assert (lines[2]["loss"], lines[2]["tokens"]) == (1.5, 7)


def test_a_resumed_run_appends(tmp_path: Path) -> None:
    for _ in range(2):
        with MetricsFile(tmp_path / "m.jsonl", num_steps=1) as metrics:
            metrics.begin("train")
    assert len((tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    with MetricsFile(tmp_path / "m.jsonl", num_steps=1) as metrics:
        metrics.write(loss=float("nan"), grad_norm=float("inf"))
    line = json.loads((tmp_path / "m.jsonl").read_text(encoding="utf-8"))
    assert line["loss"] is line["grad_norm"] is None


def test_another_phase_may_count_its_own_steps(tmp_path: Path) -> None:
    with MetricsFile(tmp_path / "m.jsonl", num_steps=9) as metrics:
        metrics.write(phase="verifier", step=4, num_steps=50)
        metrics.write()
    first, second = map(json.loads, (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines())
    assert (first["phase"], first["step"], first["num_steps"]) == ("verifier", 4, 50)
    assert (second["phase"], second["step"], second["num_steps"]) == ("start", 0, 9)


def test_the_fields_of_compilation() -> None:
    counters = Counters(compiles=3, lazy_backwards=2, recompiles=1, graph_breaks=4, cudagraph_skips=6)
    expected = {"compiles": 5, "recompiles": 1, "graph_breaks": 4, "cudagraph_skips": 6}
    assert compile_fields(counters) == expected


def test_memory_is_what_this_process_holds() -> None:
    before = memory_allocated_mib(torch.device("cpu"))
    block = torch.ones(64 * 2**20 // 4)
    assert memory_allocated_mib(torch.device("cpu")) - before > 40
    assert block.numel()


def test_the_line_for_people_leaves_out_what_is_not_known() -> None:
    values = {"loss": None, "tokens_per_s": 870.0, "lr": 6e-4}
    assert step_line(1, 200, values) == "step 1/200  870 tok/s  lr 6.0e-04"


def test_log_steps_must_be_positive() -> None:
    with pytest.raises(ValueError, match="every_steps"):
        LogConfig(every_steps=0)


def test_endings_of_a_result(tmp_path: Path) -> None:
    result = Result(name="x", num_steps=5)
    endings = {
        "finished": (result.finish, (), 0, None),
        "stopped": (result.stop, ("SIGTERM",), 75, "SIGTERM"),
        "failed": (result.fail, (NonFiniteError("loss is nan"), 3), 3, "NonFiniteError: loss is nan"),
    }
    for status, (end, arguments, code, cause) in endings.items():
        result.cause = None
        end(*arguments)
        written = json.loads(result.write(tmp_path).read_text(encoding="utf-8"))
        assert (written["status"], written["exit_code"], written["cause"]) == (status, code, cause)


def test_a_result_is_written_whole_and_without_nan(tmp_path: Path) -> None:
    result = Result(name="x", num_steps=5, loss_last=float("nan"))
    path = result.write(tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["loss_last"] is None
    assert path.name == "result.0.json"
    assert (tmp_path / "result.json").read_bytes() == path.read_bytes()  # rank 0 speaks for the run
    assert files_in(tmp_path) == ["result.0.json", "result.json"]


def test_only_rank_0_writes_the_runs_result(tmp_path: Path) -> None:
    Result(name="x", num_steps=5, rank=2, ranks=3).write(tmp_path)
    assert files_in(tmp_path) == ["result.2.json"]


def files_in(folder: Path) -> list[str]:
    """The names of its files: nothing half written stays (torch may leave folders)."""
    return sorted(item.name for item in folder.iterdir() if item.is_file())
