"""Compile caches through the installed command: warmed, saved, listed, brought back."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import COMMAND
from tests.support.caches import Caches
from tests.support.until import until

pytestmark = pytest.mark.tmux

HOLD = """
import os, pathlib, time
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(parents=True)
(folder / "x.so").touch()
time.sleep(600)
"""


def test_a_cache_is_warmed_saved_lost_and_brought_back(caches: Caches) -> None:
    cold = caches.prewarm()
    assert (cold["is_warm"], cold["num_new_files"], cold["cold_s"]) == (False, 2, cold["seconds"])
    files = caches.files()
    assert sorted(files) == ["inductor/ab/kernel.so", "triton/ab/kernel.so"]
    saved = caches.snapshot()
    assert saved["is_new"]
    assert saved["snapshot"]["num_files"] == 2
    shutil.rmtree(caches.folder())
    back = caches.restore("--json").ok().json()
    assert (back["is_new"], back["num_files"]) == (True, 2)
    assert caches.files() == files
    warm = caches.prewarm()
    assert (warm["is_warm"], warm["num_new_files"], warm["report"]["compiler_starts"]) == (True, 0, 0)
    assert warm["cold_s"] == cold["cold_s"], "what cold cost is remembered through a snapshot"
    listed = caches.opsctl("cache", "list", "--json").ok().json()
    assert [one["snapshot_id"] for one in listed["live"]] == [saved["snapshot"]["snapshot_id"]]
    assert "small" in caches.opsctl("cache", "list").ok().out


def test_an_unchanged_cache_is_saved_once(caches: Caches) -> None:
    caches.prewarm()
    first = caches.snapshot()["snapshot"]
    runs = len(list(caches.home.glob("runs/*")))
    again = caches.snapshot()
    assert (again["is_new"], again["snapshot"]["snapshot_id"]) == (False, first["snapshot_id"])
    assert len(list(caches.home.glob("runs/*"))) == runs, "it did not even need a run"
    (caches.folder() / "triton/ab/kernel.so").touch()
    touched = caches.snapshot()
    assert (touched["is_new"], touched["snapshot"]["snapshot_id"]) == (False, first["snapshot_id"])
    (caches.folder() / "triton/ab/other.so").write_text("x")
    assert caches.snapshot()["is_new"]
    assert len(list(caches.snapshots.iterdir())) == 4, "two archives, two manifests, nothing left over"


def test_a_warm_cache_is_replaced_only_when_asked_and_what_is_unsaved_is_kept(caches: Caches) -> None:
    caches.prewarm()
    caches.snapshot()
    assert "holds it already" in caches.restore().ok().out
    (caches.folder() / "triton/ab/new.so").write_text("unsaved")
    refused = caches.restore()
    assert (refused.code, "--replace" in refused.err) == (1, True)
    assert (caches.folder() / "triton/ab/new.so").exists()
    replaced = caches.restore("--replace", "--json").ok().json()
    assert (Path(replaced["kept_aside"]) / "triton/ab/new.so").read_text() == "unsaved"
    assert sorted(caches.files()) == ["inductor/ab/kernel.so", "triton/ab/kernel.so"]


def test_what_does_not_fit_or_is_damaged_changes_nothing(caches: Caches) -> None:
    assert "nothing to save" in caches.opsctl("cache", "snapshot", "--job", "small").err
    assert "no snapshot" in caches.restore().err
    caches.prewarm()
    saved = caches.snapshot()["snapshot"]
    shutil.rmtree(caches.folder())
    record = caches.snapshots / f"{saved['snapshot_id']}.json"
    good, archive = record.read_text(), Path(saved["path"])
    record.write_text(good.replace('"cpu_isa": "', '"cpu_isa": "other '))
    for words in ((), (saved["snapshot_id"],)):
        other = caches.restore(*words)
        assert (other.code, "cpu_isa: " in other.err) == (1, True)
    record.write_text(good)
    with archive.open("ab") as file:
        file.write(b"x")
    damaged = caches.restore()
    assert (damaged.code, "damaged" in damaged.err) == (1, True)
    unknown = caches.restore("2")
    assert unknown.code == 1, "one snapshot begins with 2"
    unknown = caches.restore("x")
    assert (unknown.code, "no snapshot 'x'" in unknown.err) == (2, True)
    assert list(caches.live.iterdir()) == []


def test_a_prewarm_that_fails_says_so_and_warms_nothing(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": ["sh", "-c", "echo no luck; exit 3"]})
    failed = caches.opsctl("cache", "prewarm")
    assert (failed.code, "ended with status 3" in failed.err) == (5, True)
    caches.configure(small={"command": ["true"]})
    none = caches.opsctl("cache", "prewarm", "small")
    assert (none.code, "no `prewarm` command" in none.err) == (3, True)
    unknown = caches.opsctl("cache", "prewarm", "smal")
    assert (unknown.code, "did you mean 'small'?" in unknown.err) == (3, True)


def test_while_a_prewarm_works_nobody_else_touches_the_cache(caches: Caches) -> None:
    caches.prewarm()
    caches.snapshot()
    shutil.rmtree(caches.folder())
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", HOLD]})
    client = subprocess.Popen([COMMAND, "cache", "prewarm"], cwd=caches.project, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list(caches.live.glob("*/triton/x.so")))
        for words in (("prewarm",), ("snapshot", "--job", "small"), ("restore", "--job", "small")):
            busy = caches.opsctl("cache", *words)
            assert (busy.code, "prewarm" in busy.err) == (8, True), busy
    finally:
        client.send_signal(signal.SIGINT)
        client.wait(60)


TORCH = """
import json, pathlib
import torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda x: (x.sin() * 2).sum(), fullgraph=True)
compiled(torch.randn(64))
found = {"fx_hits": counters["inductor"]["fxgraph_cache_hit"], "fx_misses": counters["inductor"]["fxgraph_cache_miss"]}
pathlib.Path("result.json").write_text(json.dumps({"warm": found["fx_misses"] == 0, **found}))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.long
def test_torch_finds_everything_in_a_restored_cache(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", TORCH]})
    cold = caches.prewarm()
    assert (cold["is_warm"], cold["report"]["fx_misses"]) == (False, 1)
    caches.snapshot()
    shutil.rmtree(caches.folder())
    caches.restore().ok()
    warm = caches.prewarm()
    assert (warm["is_warm"], warm["num_new_files"]) == (True, 0)
    assert warm["report"] == {"warm": True, "fx_hits": 1, "fx_misses": 0}


COMPILES_ON = """
import os, pathlib, time
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(parents=True)
for number in range(150):
    (folder / "new").write_bytes(os.urandom(20_000))
    (folder / "new").rename(folder / f"{number}.so")
    time.sleep(0.02)
time.sleep(600)
"""


def test_a_snapshot_beside_a_running_compile_is_whole_as_of_one_moment(caches: Caches) -> None:
    words = [sys.executable, "-c", COMPILES_ON]
    caches.configure(small={"command": words, "prewarm": words})
    caches.opsctl("train", "start", "small").ok()
    until(lambda: list(caches.live.glob("*/triton/5.so")))
    saved = caches.opsctl("cache", "snapshot", "--job", "small", "--json").ok().json()
    assert "what it compiles from now on is not in it" in saved["notes"][0]
    name = saved["snapshot"]["snapshot_id"]
    found = caches.opsctl("cache", "diff", "live", name, "--job", "small", "--json").json()["diff"]
    assert (found["changed"], found["only_b"], found["num_same"] > 5) == ([], [], True), "each file is whole"
    (caches.folder() / "triton/more.so").write_bytes(b"x")
    busy = caches.restore(name, "--replace")
    assert (busy.code, "uses the live cache" in busy.err) == (8, True), busy
