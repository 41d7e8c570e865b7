"""Rebuilds whose files come late, cut, changed or too large, and locks that are wrong: the active one stays whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.support.envs import Envs
from tests.support.wheel_server import WheelServer, wheel_server

pytestmark = pytest.mark.tmux

WHEEL = "tiny_b-2.0-py3-none-any.whl"


@pytest.fixture
def server(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelServer]:
    """An environment that stands, and a lock for another whose files an index serves."""
    envs.rebuild()
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    monkeypatch.setenv("UV_OFFLINE", "0")
    with wheel_server(envs.wheels) as found:
        found.is_index = True
        envs.configure(env={"name": "tiny", "index_url": f"{found.address}simple"})
        yield found


def _is_old_one_whole(envs: Envs) -> bool:
    (standing,) = envs.standing()
    return envs.active.name == standing and envs.verify("--full") == []


def test_a_download_that_is_cut_is_tried_again(envs: Envs, server: WheelServer) -> None:
    server.num_cut = 1
    assert envs.rebuild()["outcome"]["record"]["packages"]["tiny-b"] == "2.0"
    asked = [path for path, _ in server.seen if path.endswith(".whl")]
    assert len(asked) > len(set(asked))


def test_a_download_that_is_always_cut_is_told(envs: Envs, server: WheelServer) -> None:
    server.num_cut = 1000
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    for words in ("Failed to download `tiny-", "a download was cut: run the command again"):
        assert words in failed.err
    assert _is_old_one_whole(envs)


def test_a_wrong_hash_is_told_with_package_both_hashes_and_the_place(envs: Envs, server: WheelServer) -> None:
    server.changed[WHEEL] = (envs.wheels / "tiny_b-1.0-py3-none-any.whl").read_bytes()
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    found = hashlib.sha256(server.changed[WHEEL]).hexdigest()
    for words in ("tiny-b==2.0", found, server.listed()[WHEEL], f"it comes from {server.address}{WHEEL}"):
        assert words in failed.err
    assert _is_old_one_whole(envs)


def test_a_set_too_large_for_the_disk_is_told_by_what_the_index_says(envs: Envs, server: WheelServer) -> None:
    server.claimed_size = 1 << 50
    envs.lock.write_text(envs.lock.read_text().replace("tiny-a==1.0", "tiny-c==1.0"))
    envs.wheel("tiny-c")
    envs.pins("tiny-c==1.0", "tiny-b==2.0")
    (envs.active / "manifest.json").unlink()  # so that no earlier build tells how large they are
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "the environment needs about" in failed.err
    assert not [path for path, _ in server.seen if path == f"/{WHEEL}"], "nothing was downloaded"


def test_an_index_that_cannot_be_reached_is_told_with_what_can_be_set(envs: Envs, server: WheelServer) -> None:
    envs.configure(env={"name": "tiny", "index_url": "http://127.0.0.1:1/simple"})
    failed = envs.opsctl("env", "rebuild", UV_HTTP_RETRIES="0")
    assert failed.code == 5
    assert "127.0.0.1:1" in failed.err
    assert "set index_url, find_links or a proxy" in failed.err
    assert _is_old_one_whole(envs)


LOCKS = {
    "tiny-a>=1.0 --hash=sha256:00": "not pinned to one version: 'tiny-a>=1.0'",
    "tiny-a==1.0": "no hash for tiny-a==1.0",
    "tiny-a==1.0 --hash=sha256:00\ntiny-a==2.0 --hash=sha256:00": "tiny-a is pinned twice",
    "--index-url https://elsewhere/": "an option does not belong in a lock: --index-url",
    "git+https://host/x.git": "not pinned to one version",
    "tiny-a==1.* --hash=sha256:00": "not pinned to one version",
    "": "the lock is empty",
}


@pytest.mark.parametrize("rows", LOCKS)
def test_a_lock_that_pins_nothing_is_refused_by_line_before_anything_starts(envs: Envs, rows: str) -> None:
    envs.lock.write_text(f"# opsctl: python = 3.11\n\n{rows}\n")
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 3
    assert LOCKS[rows] in failed.err
    if rows:
        assert f"tiny.lock:{4 if 'twice' in LOCKS[rows] else 3}" in failed.err
    assert "opsctl env lock" in failed.err
    assert not envs.home.joinpath("runs").exists()
