"""What a prune of environments takes, and what it never takes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from opsctl.agent.cache.key import CacheKey
from tests.support.envs import Envs
from tests.support.until import until

pytestmark = pytest.mark.tmux


def _build(envs: Envs, version: str) -> str:
    envs.wheel("tiny-b", version)
    envs.pins("tiny-a==1.0", f"tiny-b=={version}")
    found: str = envs.rebuild()["outcome"]["env_id"]
    return found


def _why(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {one["env_id"]: one["why"] for one in found["kept"]}


def test_the_active_the_newest_and_those_in_use_stay(envs: Envs) -> None:
    envs.configure(jobs={"nap": {"command": ["python", "-c", "import time; time.sleep(600)"], "code": False}})
    used = _build(envs, "1.1")
    run = envs.opsctl("train", "start", "nap", "--json").ok().json()["run_id"]
    by_hand, idle, active, newest = (_build(envs, version) for version in ("1.2", "1.3", "1.4", "1.5"))
    envs.opsctl("env", "activate", active).ok()
    left_over = envs.home / "envs" / "0123-left"
    (left_over / "lib").mkdir(parents=True)
    half_gone = envs.home / "envs" / ".removed-0123-gone"  # a prune was ended right after it had moved it away
    shutil.copytree(envs.home / "envs" / idle, half_gone, symlinks=True)
    with subprocess.Popen(
        [envs.home / "envs" / by_hand / "bin/python", "-c", "input()"], stdin=subprocess.PIPE
    ) as child:
        asked = envs.opsctl("env", "prune", "--keep", "1", "--dry-run", "--json").ok().json()
        assert envs.standing() == sorted([".removed-0123-gone", "0123-left", used, by_hand, idle, active, newest]), (
            "only asked"
        )
        found = envs.opsctl("env", "prune", "--keep", "1", "--json").ok().json()
        listed = {one["env_id"]: one["used_by"] for one in envs.opsctl("env", "list", "--json").ok().json()["items"]}
        child.communicate(b"\n")
    process = f"process {child.pid} (python)"
    assert _why(found) == {
        active: "active", newest: "among the newest 1", used: f"used by {run}", by_hand: f"used by {process}"
    }  # fmt: skip
    assert listed == {active: [], newest: [], used: [run], by_hand: [process]}
    assert [one["env_id"] for one in found["removed"]] == [idle, ".removed-0123-gone", "0123-left"]
    assert found["freed_mib"] > 0
    assert {**asked, "is_dry_run": False} == found
    assert envs.standing() == sorted([used, by_hand, active, newest])
    assert envs.active.name == active
    assert envs.verify() == []
    text = envs.opsctl("env", "prune", "--keep", "1").ok().out
    assert f"removed  {by_hand}" in text
    assert "1 removed, freed about" in text


def test_a_compile_cache_without_a_snapshot_stays_and_is_named(envs: Envs) -> None:
    old = _build(envs, "1.1")
    fields = {"torch": "of the old one"}
    key = envs.home / "envs" / old / "cache-key.json"
    key.write_text(json.dumps({**json.loads(key.read_text()), "fields": fields}))
    digest = CacheKey(fields).digest
    kernel = envs.home / "cache" / "live" / digest / "ab" / "kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"code")
    place = envs.home / "envs" / "0123456789ab"
    place.symlink_to(old)
    _build(envs, "1.2")
    found = envs.opsctl("env", "prune", "--keep", "1").ok().out
    assert not place.is_symlink(), "the path by which jobs saw it"
    assert f"its compile cache {digest} has no snapshot, and stays" in found
    assert kernel.read_bytes() == b"code"
    assert not (envs.home / "envs" / old).exists()


def test_what_a_prune_cannot_do_is_said(envs: Envs) -> None:
    assert envs.opsctl("env", "prune").ok().out == "0 removed, freed about 0 MiB\n"
    assert envs.opsctl("env", "prune", "--keep", "0").code == 2
    envs.rebuild()
    lock = envs.home / "locks" / "env-build.lock"
    holder = ["flock", str(lock), "sh", "-c", "echo held; read word"]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        until(lambda: child.stdout.readline() == b"held\n")
        busy = envs.opsctl("env", "prune")
        child.communicate(b"\n")
    assert (busy.code, "env-build.lock" in busy.err) == (8, True)
    assert Path(envs.active).is_dir()
