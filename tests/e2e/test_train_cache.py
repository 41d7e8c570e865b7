"""`train start` and the compile cache: an empty one gets its snapshot back, a warm one is left alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.caches import COMPILE, Caches
from tests.support.until import until

pytestmark = pytest.mark.tmux


@pytest.fixture
def trained(caches: Caches) -> Caches:
    """A job that compiles as its prewarm does, and whose cache is prewarmed."""
    words = [sys.executable, "-c", COMPILE]
    caches.configure(small={"command": words, "prewarm": words})
    caches.prewarm()
    return caches


def _start(caches: Caches, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Start the job and wait for its end: the run's spec, and the job's own result."""
    run = caches.opsctl("train", "start", "small", "--name", name, "--json").ok().json()
    run = run.get("run", run)
    folder = caches.home / "runs" / run["run_id"]
    until(lambda: (folder / "exit.json").exists())
    return run["spec"], json.loads((folder / "result.json").read_text())


def test_a_warm_cache_is_found_and_left_as_it_is(trained: Caches) -> None:
    before = trained.files()
    spec, result = _start(trained, "one")
    assert (spec["notes"], spec["expect_warm"], result["warm"]) == ([], True, True)
    assert trained.files() == before


def test_an_empty_cache_gets_its_snapshot_back_and_says_so(trained: Caches) -> None:
    saved = trained.snapshot()["snapshot"]["snapshot_id"]
    before = trained.files()
    shutil.rmtree(trained.folder())
    spec, result = _start(trained, "one")
    assert (spec["expect_warm"], result["warm"]) == (True, True)
    assert f"the compile cache was empty: restored {saved} (2 files" in spec["notes"][0]
    assert trained.files() == before


def test_a_cold_start_says_that_it_is_cold_and_why(trained: Caches) -> None:
    shutil.rmtree(trained.folder())
    spec, result = _start(trained, "one")
    assert (spec["expect_warm"], result["warm"]) == (False, False)
    assert "the compile cache is cold, and no snapshot fits" in spec["notes"][0]
    said = trained.opsctl("train", "start", "small", "--name", "two")
    assert "holds nothing warmed for small" in said.ok().err, "what the run itself compiled is no prewarm"


def test_a_damaged_snapshot_is_noted_and_keeps_no_run_from_starting(trained: Caches) -> None:
    saved = trained.snapshot()["snapshot"]
    with Path(saved["path"]).open("ab") as archive:
        archive.write(b"x")
    shutil.rmtree(trained.folder())
    spec, result = _start(trained, "one")
    assert (spec["expect_warm"], result["warm"]) == (False, False)
    assert "is cold" in spec["notes"][0]
    assert "is damaged" in spec["notes"][0]


def test_a_changed_recipe_is_named_before_the_start(trained: Caches) -> None:
    words = [sys.executable, "-c", COMPILE]
    trained.configure(small={"command": words, "prewarm": words, "environment": {"OMP_NUM_THREADS": "2"}})
    spec, _ = _start(trained, "one")
    assert spec["expect_warm"] is False
    assert spec["notes"] == [
        "since the compile cache was warmed for small, this changed: variable OMP_NUM_THREADS (nothing then, 2 now)"
    ]


TOLD = (
    COMPILE
    + """
row = {"phase": "compile", "step": 0, "fx_misses": made, "aot_misses": 0}
pathlib.Path("metrics.jsonl").write_text(json.dumps(row) + chr(10))
"""
)


def test_a_cold_start_where_a_warm_one_was_expected_is_a_finding(trained: Caches) -> None:
    words = [sys.executable, "-c", COMPILE]
    trained.configure(small={"command": [sys.executable, "-c", TOLD], "prewarm": words})
    shutil.rmtree(trained.folder() / "triton/ab")
    spec, result = _start(trained, "one")
    assert (spec["expect_warm"], result["fx_misses"]) == (True, 1)
    (found,) = next(trained.home.glob("runs/one-*/findings.jsonl")).read_text().splitlines()
    assert json.loads(found)["cause"] == "cold_start"
    assert "fx_misses 1" in json.loads(found)["evidence"][0]
