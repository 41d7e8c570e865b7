"""The failures that the discipline is there for happen on the installed torch, when nothing protects against them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.compile import release_of
from trainer.preflight.releases import known

ROOT = Path(__file__).parents[2]
RELEASE = release_of(torch.__version__)
pytestmark = pytest.mark.slow


def control(name: str) -> dict[str, Any]:
    """What a control saw, in a process of its own, since all of them change torch for the whole process."""
    words = [sys.executable, "-m", "tests.train.controls", name]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_threads_that_share_code_miss_what_is_warm() -> None:
    seen = control("shared_entries")
    assert seen["misses"] > 0, seen


def test_a_recompile_limit_turns_into_silent_eager_runs() -> None:
    assert control("recompile_limit") == {"eager_calls": 4, "errors": 0}


@pytest.mark.skipif(RELEASE < (2, 13), reason="torch's configuration is one for all threads before 2.13")
def test_configuration_is_lost_in_threads() -> None:
    seen = control("thread_configuration")
    assert (seen["main"], seen["worker"]) == (64, seen["default"])


def test_a_late_backward_is_silent_under_fail_on_recompile() -> None:
    assert control("late_backward") == {"compiled_after_the_stance": 1}


@pytest.mark.skipif(RELEASE >= (2, 13), reason=f"torch {torch.__version__} masks the FX flag while dynamo compiles")
def test_a_compile_in_one_thread_fails_the_calls_of_another() -> None:
    seen = control("fx_crash")
    assert any("using FX to symbolically trace" in text for text in seen["errors"]), seen


@pytest.mark.parametrize(
    ("version", "has", "has_not"),
    [
        ("2.9.1+cu128", "every compiled call of the others fails", "configuration is per thread"),
        ("2.13.0+cpu", "configuration is per thread", "every compiled call of the others fails"),
        ("2.14.1+cu130", "configuration is per thread", "still one for the whole process"),
    ],
)
def test_what_a_release_is_known_to_do(version: str, has: str, has_not: str) -> None:
    said = "\n".join(known(version))
    assert has in said
    assert has_not not in said
