"""Environments come and go; compile caches that no snapshot holds stay."""

from __future__ import annotations

import pytest

from tests.support.envs import Envs

pytestmark = pytest.mark.tmux


def test_rebuilds_and_prunes_of_environments_and_caches_leave_an_unsaved_cache_alone(envs: Envs) -> None:
    envs.rebuild()
    kernel = envs.home / "cache/live/0123456789abcdef/triton/k.so"  # of an environment that is long gone
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"warm")
    (kernel.parents[1] / "key.json").write_text('{"torch": "1.0"}')
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    envs.rebuild()
    envs.opsctl("env", "prune", "--keep", "1").ok()
    assert len(envs.standing()) == 1
    kept = envs.opsctl("cache", "prune", "--json").ok().json()
    assert [(one["name"], one["why"]) for one in kept["kept"]] == [
        ("0123456789abcdef", "no snapshot holds it; --save takes one first")
    ]
    assert kernel.read_bytes() == b"warm"
    assert "not saved" in envs.opsctl("cache", "list").ok().out
