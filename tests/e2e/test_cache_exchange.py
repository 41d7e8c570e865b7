"""Snapshots from one target to another: pulled, pushed, checked, and trusted only when somebody says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.caches import Caches

pytestmark = pytest.mark.tmux


@pytest.fixture
def saved(caches: Caches) -> dict[str, Any]:
    """A snapshot on the first target, pulled to this machine."""
    caches.prewarm()
    caches.snapshot()
    found: dict[str, Any] = caches.opsctl("cache", "pull", "2", "--json").ok().json()
    return found


def _push(caches: Caches, source: str, *words: str) -> Any:
    return caches.opsctl("cache", "push", source, *words, "-t", "there")


def _standing(caches: Caches) -> list[str]:
    folder = caches.other_home / "cache/snapshots"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_snapshot_reaches_another_target_and_is_warm_there(caches: Caches, saved: dict[str, Any]) -> None:
    archive = Path(saved["archive"])
    assert saved["is_new"]
    assert archive.read_bytes() == (caches.snapshots / archive.name).read_bytes()
    assert caches.opsctl("cache", "pull", "2", "--json").ok().json()["is_new"] is False
    unknown = _push(caches, saved["snapshot_id"])
    assert (unknown.code, "--trust" in unknown.err, _standing(caches)) == (1, True, [])
    pushed = _push(caches, saved["snapshot_id"][:12], "--trust", "--json").ok().json()
    assert (pushed["is_new"], pushed["snapshot_id"]) == (True, saved["snapshot_id"])
    assert _push(caches, str(archive), "--json").ok().json()["is_new"] is False, "known by now"
    caches.opsctl("cache", "restore", "--job", "small", "-t", "there").ok()
    checked = caches.opsctl("cache", "verify", "-t", "there", "--json").ok().json()
    assert checked["check"]["report"] == {"warm": True, "fx_misses": 0, "compiler_starts": 0}


def test_what_a_target_made_itself_may_come_back_without_trust(caches: Caches, saved: dict[str, Any]) -> None:
    shutil.rmtree(caches.snapshots)
    caches.opsctl("cache", "push", saved["snapshot_id"]).ok()
    shutil.rmtree(caches.folder())
    caches.restore().ok()


def test_a_snapshot_that_was_laid_there_by_hand_is_not_restored_untrusted(
    caches: Caches, saved: dict[str, Any]
) -> None:
    folder = caches.other_home / "cache/snapshots"
    folder.mkdir(parents=True)
    for suffix in (".tar.zst", ".json"):
        shutil.copy(Path(saved["archive"]).with_name(saved["snapshot_id"] + suffix), folder)
    words = ("cache", "restore", "--job", "small", "-t", "there")
    refused = caches.opsctl(*words)
    assert (refused.code, "nobody has vouched" in refused.err) == (1, True)
    assert list((caches.other_home / "cache/live").iterdir()) == []
    caches.opsctl(*words, "--trust").ok()


def _change(manifest: Path, **values: Any) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **values}))


def test_damaged_truncated_and_forged_snapshots_are_refused_and_leave_nothing(
    caches: Caches, saved: dict[str, Any]
) -> None:
    archive = Path(saved["archive"])
    manifest = archive.with_name(f"{saved['snapshot_id']}.json")
    good, said = archive.read_bytes(), manifest.read_text()
    archive.write_bytes(good[:-100])
    cut = _push(caches, str(archive), "--trust")
    assert (cut.code, "damaged" in cut.err) == (1, True)
    archive.write_bytes(good)
    record = json.loads(said)
    first = next(iter(record["files"]))
    for changes, words in (
        ({"files": {**record["files"], first: "0" * 64}}, "another content"),
        ({"files": {"../../x": "0" * 64}, "num_files": 1}, "leads elsewhere"),
        ({"snapshot_id": "../../known"}, "no snapshot's name"),
        ({"key": {**record["key"], "cpu_isa": "other"}}, "another key"),
        ({"archive_sha256": 7}, "damaged"),
    ):
        _change(manifest, **changes)
        forged = _push(caches, str(archive), "--trust")
        assert (forged.code, words in forged.err) == (1, True), forged.err
        manifest.write_text(said)
    manifest.write_text("{")
    assert _push(caches, str(archive), "--trust").code == 1
    manifest.unlink()
    alone = _push(caches, str(archive), "--trust")
    assert (alone.code, "is not beside it" in alone.err) == (2, True)
    assert _push(caches, "nothing").code == 2
    no_folder = caches.opsctl("cache", "pull", saved["snapshot_id"], "opsctl.yaml")
    assert (no_folder.code, "is no folder" in no_folder.err) == (2, True)
    assert _standing(caches) == []
