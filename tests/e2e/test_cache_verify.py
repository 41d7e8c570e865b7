"""`cache verify` proves warmth on a copy, and never fills what it checks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.caches import COMPILE, Caches

pytestmark = pytest.mark.tmux

# says that it is warm, whatever it did
LIAR = COMPILE.replace('"warm": made == 0, "fx_misses": made, "compiler_starts": made', '"warm": True')


def test_a_warm_cache_is_proved_on_a_copy_and_a_cold_one_is_not_filled(caches: Caches) -> None:
    empty = caches.opsctl("cache", "verify")
    assert (empty.code, "is empty" in empty.err) == (1, True)
    caches.prewarm()
    before = caches.files()
    warm = caches.opsctl("cache", "verify", "--json").ok().json()
    assert (warm["is_warm"], warm["check"]["num_files"], warm["check"]["doubts"]) == (True, 2, [])
    shutil.rmtree(caches.folder() / "inductor")
    cold = caches.opsctl("cache", "verify", "--json")
    found = cold.json()
    assert (cold.code, found["is_warm"]) == (1, False)
    assert found["check"]["doubts"][:2] == ["fx_misses: 1", "compiler_starts: 1"]
    assert caches.files() == {"triton/ab/kernel.so": before["triton/ab/kernel.so"]}, "the live cache was only read"
    assert not list(caches.home.glob("runs/*/cache")), "the copy is gone"
    text = caches.opsctl("cache", "verify")
    assert (text.code, "NOT warm" in text.out, "cache explain" in text.out) == (1, True, True)


def test_a_jobs_word_alone_proves_nothing(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", LIAR]})
    caches.prewarm()
    unproved = caches.opsctl("cache", "verify")
    assert (unproved.code, "no fx_misses and no compiler_starts" in unproved.out) == (1, True)
    shutil.rmtree(caches.folder() / "triton")
    assert "1 files came into the cache" in caches.opsctl("cache", "verify").out


GROUP = """
import json, os, pathlib
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"]) / "0"
group, part = folder / "__grp__k.json", folder / "k.cubin"
found = json.loads(group.read_text())["child_paths"]["k.cubin"] if group.exists() else "nowhere"
missed = int(found != str(part) or not os.path.exists(found))  # Triton looks nowhere else for a kernel's parts
if missed:
    folder.mkdir(parents=True, exist_ok=True)
    part.write_text("code")
    group.write_text(json.dumps({"child_paths": {"k.cubin": str(part)}}))
pathlib.Path("result.json").write_text(json.dumps({"warm": not missed, "fx_misses": 0, "compiler_starts": missed}))
"""


def test_tritons_absolute_paths_follow_the_cache_wherever_it_goes(caches: Caches) -> None:
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", GROUP]})
    caches.prewarm()
    assert caches.opsctl("cache", "verify", "--json").ok().json()["is_warm"], "the copy lies elsewhere"
    saved = caches.snapshot()["snapshot"]["snapshot_id"]
    elsewhere = caches.home.with_name("elsewhere")
    shutil.move(caches.home, elsewhere)
    caches.home = elsewhere
    caches.live, caches.snapshots = elsewhere / "cache/live", elsewhere / "cache/snapshots"
    caches.configure(small={"command": ["true"], "prewarm": [sys.executable, "-c", GROUP]})
    shutil.rmtree(caches.folder())
    caches.restore().ok()
    group = next(Path(caches.folder()).rglob("__grp__*"))
    assert json.loads(group.read_text()) == {"child_paths": {"k.cubin": str(group.with_name("k.cubin"))}}
    assert "holds it already" in caches.restore().ok().out, "its own place is no difference"
    assert caches.prewarm()["is_warm"]
    assert caches.snapshot()["snapshot"]["snapshot_id"] == saved
