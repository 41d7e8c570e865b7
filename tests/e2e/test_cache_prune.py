"""Pruning: old snapshots go, and nothing that is warm loses its last copy."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.caches import Caches

pytestmark = pytest.mark.tmux


def _prune(caches: Caches, *words: str) -> Any:
    return caches.opsctl("cache", "prune", "--json", *words).ok().json()


def _names(items: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{one['kind']} {one['name']}" for one in items)


def _stale(caches: Caches) -> Path:
    """Make of the live cache the one of an environment that is gone."""
    root = caches.folder()
    gone = root.with_name("0123456789abcdef")
    root.rename(gone)
    key = json.loads((gone / "key.json").read_text())
    (gone / "key.json").write_text(json.dumps({**key, "env": "gone"}))
    return gone


def test_old_snapshots_go_and_the_one_that_holds_the_live_cache_stays(caches: Caches) -> None:
    caches.prewarm()
    first = caches.snapshot()["snapshot"]["snapshot_id"]
    new = caches.folder() / "triton/ab/new.so"
    new.write_text("1")
    second = caches.snapshot()["snapshot"]["snapshot_id"]
    new.write_text("22")
    third = caches.snapshot()["snapshot"]["snapshot_id"]
    caches.restore(first, "--replace").ok()
    planned = _prune(caches, "--keep", "1", "--dry-run")
    assert _names(planned["removed"]) == [f"snapshot {second}"]
    assert len(list(caches.snapshots.glob("*.json"))) == 3, "nothing was done yet"
    assert _names(_prune(caches, "--keep", "1")["removed"]) == [f"snapshot {second}"]
    left = {path.name.removesuffix(".json") for path in caches.snapshots.glob("*.json")}
    assert left == {first, third}, "the newest, and the one that holds the live cache"
    assert len(list(caches.snapshots.iterdir())) == 4


def test_an_unsaved_cache_of_no_environment_stays_until_it_is_saved(caches: Caches) -> None:
    caches.prewarm()
    files = caches.files()
    gone = _stale(caches)
    kept = _prune(caches)
    assert (kept["removed"], kept["kept"][0]["why"]) == ([], "no snapshot holds it; --save takes one first")
    saved = _prune(caches, "--save")
    assert _names(saved["removed"]) == ["live 0123456789abcdef"]
    assert not gone.exists()
    (archive,) = caches.snapshots.glob("*.zst")
    text = subprocess.run(("tar", "--zstd", "-tf", archive), check=True, capture_output=True, text=True).stdout
    assert sorted(text.split()) == sorted(files)
    assert _prune(caches)["removed"] == [], "that snapshot is the only one of its key"


def test_a_live_cache_that_an_environment_or_a_run_uses_stays(caches: Caches) -> None:
    caches.prewarm()
    caches.snapshot()
    assert _prune(caches)["removed"] == []
    assert caches.files()


def test_what_a_restore_put_aside_goes_only_when_saved(caches: Caches) -> None:
    caches.prewarm()
    caches.snapshot()
    (caches.folder() / "triton/ab/new.so").write_text("unsaved")
    aside = Path(caches.restore("--replace", "--json").ok().json()["kept_aside"])
    assert _names(_prune(caches)["removed"]) == []
    assert _names(_prune(caches, "--save")["removed"]) == [f"aside {aside.name}"]
    assert not aside.exists()
    assert len(list(caches.snapshots.glob("*.json"))) == 2
    shutil.rmtree(caches.folder())
    newest = json.loads(caches.opsctl("cache", "list", "--json").ok().out)["snapshots"][0]["snapshot_id"]
    caches.restore(newest).ok()
    assert (caches.folder() / "triton/ab/new.so").read_text() == "unsaved"
