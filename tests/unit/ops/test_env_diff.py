"""Two sides compared: what is a difference, and what only looks like one."""

from __future__ import annotations

import pytest

from opsctl.ops.env_diff import Side, compare, of_env, of_lock
from opsctl.records.env import EnvContents

A, B = "a" * 64, "b" * 64
LOCK = f"# opsctl: python = 3.11\nx==1.0 --hash=sha256:{A}\ny==2.0 ; sys_platform == 'win32' --hash=sha256:{B}\n"


def _env(**changes: object) -> EnvContents:
    known: dict[str, object] = {
        "env_id": "e", "name": "s", "created": 0.0, "python": "3.11.7", "platform": "cpython-311-x86_64-linux-gnu",
        "lock": LOCK, "packages": {"x": "1.0"},
    }  # fmt: skip
    return EnvContents(**{**known, **changes})  # type: ignore[arg-type]  # the fields are right


def test_an_environment_is_the_lock_that_it_was_built_from() -> None:
    lock, env = of_lock(LOCK, label="l"), of_env(_env())
    assert compare(lock, env).is_same
    assert compare(env, lock).is_same, "what a marker leaves out is no difference, whichever way one looks"


def test_pythons_agree_as_far_as_both_are_told() -> None:
    lock = of_lock(LOCK, label="l")
    assert compare(lock, of_env(_env(python="3.12.1"))).facts == {"python": "3.11 -> 3.12.1"}
    assert compare(of_env(_env(python="3.1.1")), lock).facts == {"python": "3.1.1 -> 3.11"}
    other = of_env(_env(platform="cpython-311-aarch64-linux-gnu"))
    assert list(compare(of_env(_env()), other).facts) == ["platform"]


def test_a_package_that_came_later_has_no_hash_to_compare() -> None:
    later = of_env(_env(packages={"x": "1.1"}))
    found = compare(of_lock(LOCK, label="l"), later)
    assert (found.changed, found.rehashed) == ({"x": "1.0 -> 1.1"}, ())


def test_the_same_version_with_other_hashes() -> None:
    found = compare(of_lock(LOCK, label="l"), of_lock(LOCK.replace(A, B), label="m"))
    assert (found.rehashed, found.is_same) == (("x",), False)


@pytest.mark.parametrize(
    ("left", "right", "kinds"),
    [
        ({"x": {"f": "1"}}, {"x": {"f": "1"}}, []),
        ({"x": {"f": "1"}}, {"x": {"f": "2"}}, ["changed"]),
        ({"x": {"f": "1"}}, {"x": {"g": "1"}}, ["removed", "added"]),
        ({"": {"f": "1"}}, {}, ["removed"]),
        ({"w": {"f": "1"}}, {}, []),  # a distribution that only one side has says that itself
    ],
)
def test_files_of_what_both_have_and_of_nobody(
    left: dict[str, dict[str, str]], right: dict[str, dict[str, str]], kinds: list[str]
) -> None:
    versions = {"x": "1.0"}
    found = compare(Side("a", versions=versions, files=left), Side("b", versions=versions, files=right))
    assert [one.kind for one in found.files] == kinds


def test_files_of_another_version_are_not_listed() -> None:
    a = Side("a", versions={"x": "1.0"}, files={"x": {"f": "1"}})
    b = Side("b", versions={"x": "2.0"}, files={"x": {"f": "2"}})
    assert compare(a, b).files == ()
