"""A fault in the real training loop ends the run with status 4, and is named; what a run does beside its steps is none.

The faults are in tests/train/seal_faults.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.commands import PACKAGE, environment
from tests.train.conftest import ColdPrewarm
from tests.train.seal_faults import OPTIONS
from tests.train.test_train import result_of
from trainer.errors import EXIT_COMPILE, EXIT_FINISHED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
HIDDEN = "float32[2, 32, 32]"  # two rows of eight blocks of four slots

# what names each fault: the function, why, with what, the way out
NAMED = {
    "new_shape": ("mask_full_attention", "expected 2, actual 1", "int64[1, 8]", "keep every batch at one fixed shape"),
    "new_dtype": ("layer_full_attention", "dtype mismatch", "bfloat16[2, 32, 32]", "guard a function of its own"),
    "graph_break": (
        "layer_full_attention",
        "data-dependent",
        f"{HIDDEN} grad",
        "take out of it what the compiler cannot",
    ),
    "toggled_grad_mode": ("mask_full_attention", "grad_mode", "int64[2, 8]", "guard a function of its own"),
    "late_backward": (
        "layer_full_attention",
        "its backward was not run before the seal",
        "",
        "run forward and backward",
    ),
    "unfused_attention": ("unfused_attention.<locals>.distilled", "ran unfused", "float32[1, 2, 16, 8]", "call it"),
    "unfused_and_swallowed": ("this process", "the warning was swallowed", "", "call it through the compiled function"),
    "suppressed_error": ("this process", "suppress_errors=True", "", "take back what set it"),
    "one_function_for_all_kinds": ("mask", "2 compiled entries", "", "guard a function of its own for each kind"),
}


def driver(cache: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = environment(cache, PACKAGE)
    argv = [sys.executable, "-m", *words]
    return subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=560)


@pytest.fixture(scope="module")
def ended(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """How a run ended with each fault, and without one."""
    done = driver(cold_prewarm.cache, tmp_path_factory.mktemp("faults"), "tests.train.seal_faults", str(tiny_recipe))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_ends_the_run_with_4_and_is_named(name: str, ended: dict[str, dict[str, Any]]) -> None:
    one = ended[name]
    assert one["status"] == EXIT_COMPILE, one["said"]
    assert "Traceback" not in one["said"]
    cause = one["cause"].removeprefix(f"{one['error']}: ")
    assert cause in one["said"]
    function, reason, shapes, way_out = NAMED[name]
    first, *_ = cause.splitlines()
    assert function in first
    assert "of rank 1" in first
    for part in (reason, shapes, f"way out: {way_out}"):
        assert part in cause


def test_every_fault_was_tried_and_the_run_itself_finished(ended: dict[str, dict[str, Any]]) -> None:
    assert ended.keys() == {"without a fault", *NAMED}
    assert ended["without a fault"]["status"] == EXIT_FINISHED


@pytest.mark.long
def test_the_launcher_ends_with_4_and_names_the_rank_and_the_fault(
    cold_prewarm: ColdPrewarm, tiny_recipe: Path, tmp_path: Path
) -> None:
    words = ("tests.train.faulty_ranks", "new_shape", "train", str(tiny_recipe), "--nproc", "2", *OPTIONS)
    done = driver(cold_prewarm.cache, tmp_path, *words)
    assert done.returncode == EXIT_COMPILE, done.stdout + done.stderr
    said = "rank 1 failed first: SealBroken: compile discipline broken in mask_full_attention of rank 1: compiled again"
    assert said in done.stdout
    result = result_of(tmp_path)
    assert (result["status"], result["exit_code"], result["rank"]) == ("failed", EXIT_COMPILE, 1)
    assert "way out: keep every batch at one fixed shape" in result["cause"]
