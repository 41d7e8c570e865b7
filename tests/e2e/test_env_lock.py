"""Locking through the installed command, and what is wrong with a set or a lock is said with file and line."""

from __future__ import annotations

import pytest

from tests.support.envs import OPTIONS, Envs


def test_a_lock_names_every_distribution_with_hashes_and_no_place(envs: Envs) -> None:
    by_hand = envs.lock.read_text()
    envs.lock.unlink()
    found = envs.opsctl("env", "lock", "--json").ok().json()
    assert found["is_new"]
    text = envs.lock.read_text()
    for row in by_hand.replace(OPTIONS, "").splitlines():
        assert all(word in text for word in row.split() if word != "#"), row
    assert text.count("--hash=sha256:") == 2
    assert str(envs.wheels) not in text
    assert "find-links" not in text


def test_locking_again_keeps_versions_until_one_is_upgraded(envs: Envs) -> None:
    envs.wants("tiny-a==1.0", "tiny-b")
    envs.wheel("tiny-b", "2.0")
    assert envs.opsctl("env", "lock", "--json").ok().json()["changes"]["changed"] == {}
    assert "changed  tiny-b 1.0 -> 2.0" in envs.opsctl("env", "lock", "--upgrade", "tiny_b").ok().out
    assert "nothing changed" in envs.opsctl("env", "lock").ok().out
    refused = envs.opsctl("env", "lock", "--upgrade", "tiny-c")
    assert (refused.code, "did you mean" in refused.err) == (2, True)


def test_a_set_that_cannot_be_resolved_leaves_the_old_lock(envs: Envs) -> None:
    before = envs.lock.read_text()
    envs.wants("tiny-a==9")
    failed = envs.opsctl("env", "lock")
    assert failed.code == 5
    assert "tiny-a" in failed.err
    assert envs.lock.read_text() == before
    assert sorted(path.name for path in envs.lock.parent.iterdir()) == ["tiny.in", "tiny.lock"]


def test_a_set_changed_after_it_was_locked_is_said(envs: Envs) -> None:
    envs.opsctl("env", "lock").ok()
    envs.wants("tiny-a", "tiny-b")
    assert "changed since it was locked" in envs.opsctl("env", "rebuild").ok().err


WRONG_LOCKS = {
    "unpinned": ("tiny-a>=1.0 --hash=sha256:00", "tiny.lock:3: not pinned to one version: 'tiny-a>=1.0'"),
    "no hash": ("tiny-a==1.0", "tiny.lock:3: no hash for tiny-a==1.0"),
    "an index": ("--index-url https://mirror/simple", "tiny.lock:3: an option does not belong in a lock"),
    "an address": ("tiny-a @ https://host/tiny-a.whl", "tiny.lock:3: not pinned to one version"),
    "editable": ("-e .", "tiny.lock:3: an option does not belong in a lock: -e"),
    "empty": ("", "the lock is empty"),
}


@pytest.mark.parametrize("case", WRONG_LOCKS)
def test_a_wrong_lock_is_refused_with_its_line(envs: Envs, case: str) -> None:
    row, words = WRONG_LOCKS[case]
    envs.lock.write_text(f"{OPTIONS}# by hand\n{row}\n")
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 3
    assert words in failed.err
    assert "opsctl env lock" in failed.err


def test_what_is_missing_is_named_with_the_way_out(envs: Envs) -> None:
    missing = envs.opsctl("env", "rebuild", "tinny")
    assert (missing.code, "did you mean 'tiny'?" in missing.err) == (3, True)
    envs.lock.unlink()
    unlocked = envs.opsctl("env", "rebuild")
    assert (unlocked.code, "`opsctl env lock tiny` writes it" in unlocked.err) == (3, True)
    nothing = envs.opsctl("env", "verify")
    assert (nothing.code, "`opsctl env rebuild` builds one" in nothing.err) == (1, True)
    unknown = envs.opsctl("env", "activate", "0123")
    assert (unknown.code, "no environment '0123'" in unknown.err) == (2, True)


def test_a_python_that_the_target_lacks_is_named(envs: Envs) -> None:
    envs.lock.write_text(envs.lock.read_text().replace(OPTIONS, "# opsctl: python = 3.99\n"))
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 6
    assert "the set wants Python 3.99" in failed.err
    assert "install python3.99" in failed.err


@pytest.mark.tmux
def test_a_complete_set_overrules_what_distributions_ask_of_each_other(envs: Envs) -> None:
    envs.wheel("tiny-a", "2.0", requires=("tiny-b>=5", "tiny-gone"))
    envs.wants("tiny-a==2.0", "tiny-b==1.0")
    refused = envs.opsctl("env", "lock")
    assert refused.code == 5
    envs.wants("# opsctl: complete = yes", "# opsctl: without = tiny-gone", "tiny-a==2.0", "tiny-b==1.0")
    envs.opsctl("env", "lock").ok()
    assert envs.opsctl("env", "lock", "--json").ok().json()["num_packages"] == 2
    assert envs.rebuild()["outcome"]["record"]["packages"] == {"tiny-a": "2.0", "tiny-b": "1.0"}
