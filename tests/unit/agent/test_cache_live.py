"""Keys, listings and copies of live caches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from opsctl.agent.cache import snapshot
from opsctl.agent.cache.key import CacheKey, differences, fields, key_without_env, parse_isa
from opsctl.agent.cache.live import LivePaths, content_digest, listing, listing_digest, read_warmed, remember_warmed
from opsctl.agent.cache.prewarm import is_warm
from opsctl.agent.cache.prune import keys_in_use
from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.files import write_record
from opsctl.agent.home import Home
from opsctl.errors import Busy
from opsctl.records.cache import Warmed
from opsctl.records.env import EnvRecord

CPU = "processor: 0\nflags\t\t: fpu vme avx avx2 fma hypervisor\n\nprocessor: 1\nflags: other\n"
ANSWER = {
    "abi": "cpython-311-x86_64-linux-gnu",
    "triton": "3.7.1",
    "torch": {"version": "2.13.0", "git": "abc", "cuda": "13.0", "hip": "", "gpus": ["H200", "H200"]},
}


def test_a_key_holds_what_torchs_own_keys_do_not_tell_apart() -> None:
    found = fields(ANSWER, {"cpu_isa": "avx2 (00)"})
    assert found == {
        "torch": "2.13.0",
        "torch_git": "abc",
        "triton": "3.7.1",
        "cuda": "13.0",
        "gpus": "H200",
        "python_abi": "cpython-311-x86_64-linux-gnu",
        "cpu_isa": "avx2 (00)",
    }
    assert len(CacheKey(found).digest) == 16
    for name in found:
        assert CacheKey({**found, name: "other"}).digest != CacheKey(found).digest


def test_an_environment_without_torch_has_a_key_too() -> None:
    found = fields({"abi": "x", "triton": "", "torch": None}, {"cpu_isa": "i"})
    assert (found["torch"], found["cuda"], found["gpus"]) == ("none", "none", "cpu")


def test_the_instruction_sets_count_and_the_rest_of_the_flags_does_not() -> None:
    one = parse_isa(CPU)
    assert one.startswith("avx2 (")
    assert parse_isa(CPU.replace("hypervisor", "smep")) == one
    assert parse_isa(CPU.replace("fma", "fma avx512f")).startswith("avx512f (")
    assert parse_isa(CPU.replace("fma", "")) != one
    assert parse_isa("Features : fp asimd crc32\n").startswith("asimd (")


def test_keys_differ_field_by_field() -> None:
    ours = {"torch": "2.13.0", "gpus": "H200", "cuda": "13.0"}
    assert differences(ours, {**ours, "gpus": "H100", "env": "x"}) == (
        "gpus: H200 here, H100 in the snapshot",
        "env: nothing here, x in the snapshot",
    )
    assert differences(ours, ours) == ()


@pytest.mark.parametrize("text", ["{", "[]", '{"fields": 1, "machine": {}}', '{"fields": {}}'])
def test_an_environment_whose_kept_key_was_edited_keeps_no_cache_from_being_pruned(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path / "home")
    home.ensure()
    good, bad = (EnvPaths(home.envs / name) for name in ("good", "bad"))
    for paths, kept in ((good, '{"fields": {"torch": "1"}, "machine": {}}'), (bad, text)):
        paths.root.mkdir()
        write_record(paths.record, EnvRecord("a", "ab", "1", 1.0, "3.11.1", "x"))
        paths.cache_key.write_text(kept)
    assert keys_in_use(home) == {CacheKey({"torch": "1"}).digest, key_without_env().digest}


@pytest.fixture
def live(tmp_path: Path) -> LivePaths:
    root = tmp_path / "live"
    (root / "inductor" / "ab").mkdir(parents=True)
    (root / "inductor" / "ab" / "x.py").write_text("1")
    (root / "inductor" / "x.lock").touch()
    (root / "outside").symlink_to("/etc")
    (root / "key.json").write_text("{}")
    return LivePaths(root)


def test_a_listing_leaves_out_locks_links_and_our_own_files(live: LivePaths) -> None:
    assert list(listing(live.root)) == ["inductor/ab/x.py"]
    assert listing(live.root / "nowhere") == {}


def test_a_listing_changes_with_any_write_and_a_content_only_with_content(live: LivePaths) -> None:
    before = listing_digest(listing(live.root))
    os.utime(live.root / "inductor/ab/x.py", (1e9, 1e9))  # a clock may tick too seldom for two writes
    assert listing_digest(listing(live.root)) != before
    assert content_digest({"a": "1", "b": "2"}) == content_digest({"b": "2", "a": "1"})
    assert content_digest({"a": "1"}) != content_digest({"a": "2"})


def _grow(monkeypatch: pytest.MonkeyPatch, root: Path, times: int) -> None:
    """Let something compile into the cache during the next `times` copies."""
    left = [times]

    def copy(source: Path, target: Path) -> None:
        shutil.copyfile(source, target)
        if left[0]:
            left[0] -= 1
            (root / f"new{left[0]}").write_text("x")

    monkeypatch.setattr(snapshot.shutil, "copy2", copy)


def test_a_cache_that_grows_is_copied_until_it_holds_still(
    live: LivePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _grow(monkeypatch, live.root, 3)
    files = snapshot.copy_until_steady(live.root, tmp_path / "copy", limit_s=20)
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    assert sorted(files) == ["inductor/ab/x.py", "new0", "new1", "new2"]
    assert files.keys() <= copied


def test_a_cache_that_never_holds_still_is_busy(
    live: LivePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _grow(monkeypatch, live.root, 10_000)
    with pytest.raises(Busy, match="did not hold still"):
        snapshot.copy_until_steady(live.root, tmp_path / "copy", limit_s=0)


def test_what_was_warmed_is_kept_by_job(live: LivePaths) -> None:
    one = Warmed("a", 1.0, 2.0, 2.0, 3, False, {"fx_misses": 3})
    remember_warmed(live, one)
    remember_warmed(live, Warmed("b", 1.0, 2.0, None, 0, None))
    assert read_warmed(live)["a"] == one
    assert sorted(read_warmed(live)) == ["a", "b"]


@pytest.mark.parametrize(
    ("report", "num_new", "expected"),
    [({"warm": True}, 0, True), ({"warm": True}, 2, False), ({"warm": False}, 0, False), ({}, 0, None), ({}, 9, None)],
)
def test_warm_is_the_jobs_own_word_unless_the_disk_says_otherwise(
    report: dict[str, bool], num_new: int, expected: bool | None
) -> None:
    assert is_warm(report, num_new) is expected
