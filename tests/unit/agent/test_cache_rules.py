"""The pure decisions about caches: what is surplus, what a start may expect, what a manifest may say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.agent.cache.at_start import judge
from opsctl.agent.cache.exchange import manifest_problem
from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.known import manifest_digest
from opsctl.agent.cache.live import content_digest
from opsctl.agent.cache.portable import make_portable, place, portable_digests
from opsctl.agent.cache.prune import surplus
from opsctl.agent.cache.verify import doubts
from opsctl.agent.env.place import ensure_place
from opsctl.agent.env.place import place as place_of
from opsctl.records.cache import SnapshotRecord, Warmed
from tests.support.torch_env import FINGERPRINT, lend_torch

KEY = {"torch": "2.13.0", "gpus": "H200"}
FILES = {"inductor/a.so": "a" * 64}
NAME = f"20260101-{CacheKey(KEY).digest[:8]}-{content_digest(FILES)[:12]}"
RECORD = SnapshotRecord(NAME, 1.0, KEY, 1, 1.0, "b" * 64, FILES)


def _snapshots(*keys: str) -> list[SnapshotRecord]:
    return [replace(RECORD, snapshot_id=str(number), key={"torch": key}) for number, key in enumerate(keys)]


def test_the_newest_of_each_key_stay_and_what_is_needed() -> None:
    found = _snapshots("a", "b", "a", "a", "b", "a")
    assert [one.snapshot_id for one in surplus(found, 2, set())] == ["3", "5"]
    assert [one.snapshot_id for one in surplus(found, 1, {"3"})] == ["2", "4", "5"]


def test_warm_is_expected_only_under_the_conditions_of_the_prewarm() -> None:
    warmed = Warmed("small", 1.0, 2.0, 2.0, 3, False, conditions={"a.yaml: rows": "4", "threads": "1"})
    assert judge(warmed, "small", {"a.yaml: rows": "4"}).is_warm_expected
    changed = judge(warmed, "small", {"a.yaml: rows": "8", "x": "1", "y": "1", "z": "1"})
    assert not changed.is_warm_expected
    assert "a.yaml: rows (4 then, 8 now)" in changed.notes[0]
    assert changed.notes[0].endswith("and 1 more")
    assert "nothing warmed for small" in judge(None, "small", {}).notes[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, ""),
        ({"snapshot_id": "../x"}, "no snapshot's name"),
        ({"snapshot_id": NAME + "\n"}, "no snapshot's name"),
        ({"archive_sha256": "b"}, "no sha256"),
        ({"files": {"/etc/passwd": "a" * 64}}, "leads elsewhere"),
        ({"key": {"torch": "2.12.0"}}, "another key"),
        ({"files": {"inductor/b.so": "a" * 64}}, "another content"),
        ({"num_files": 2}, "another content"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_none(changes: dict[str, object], word: str) -> None:
    found = manifest_problem(replace(RECORD, **changes), ".tar.zst")  # type: ignore[arg-type]  # the fields are right
    assert word in found
    assert bool(found) == bool(word)
    assert manifest_problem(RECORD, ".exe")


def test_any_change_of_a_manifest_is_another_manifest() -> None:
    assert manifest_digest(RECORD) == manifest_digest(replace(RECORD))
    assert manifest_digest(RECORD) != manifest_digest(replace(RECORD, created=2.0))


@pytest.mark.parametrize(
    ("report", "new_files", "count"),
    [
        ({"warm": True, "fx_misses": 0, "aot_misses": 0, "compiler_starts": 0}, [], 0),
        ({"fx_misses": 0, "compiler_starts": 0, "aot_bypasses": 1}, [], 1),
        ({"fx_misses": 0, "compiler_starts": 0, "warm": False}, [], 1),
        ({"fx_misses": 0, "compiler_starts": 0}, ["inductor/x.so"], 1),
        ({"warm": True}, [], 1),
    ],
)
def test_everything_that_speaks_against_a_warm_cache_counts(
    report: dict[str, object], new_files: list[str], count: int
) -> None:
    assert len(doubts(report, new_files)) == count


def test_a_group_file_has_one_hash_wherever_its_cache_lies(tmp_path: Path) -> None:
    name = "triton/0/__grp__k.json"
    hashes = []
    for home in ('a "quoted" home', "b"):
        path = tmp_path / home / name
        path.parent.mkdir(parents=True)
        path.write_text("[opsctl:cache]/triton/0/k.cubin")
        place(tmp_path / home, [name], root=str(tmp_path / home))
        hashes.append(portable_digests(tmp_path / home, [name], root=str(tmp_path / home)))
    assert hashes[0] == hashes[1]
    make_portable(tmp_path / "b", [name], root=str(tmp_path / "b"))
    assert (tmp_path / "b" / name).read_text() == "[opsctl:cache]/triton/0/k.cubin"


def test_all_builds_of_a_set_have_one_place_that_leads_to_the_newest(tmp_path: Path) -> None:
    one, two = lend_torch(tmp_path, build="one"), lend_torch(tmp_path, build="two")
    assert ensure_place(one) == ensure_place(two) == place_of(one) == tmp_path / "envs" / FINGERPRINT[:12]
    assert place_of(one).resolve() == two
    (one / "env.json").unlink()
    assert ensure_place(one) == one, "no complete build: its own path"
    assert [path.name for path in (tmp_path / "envs").iterdir() if path.name.endswith(".part")] == []
