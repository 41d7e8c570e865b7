"""Environments through the installed command: rebuilt, checked, listed, activated."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from opsctl.ops.tools import local_uv
from tests.support.envs import Envs

pytestmark = pytest.mark.tmux


def _install(envs: Envs, *words: str) -> None:
    """Install behind opsctl's back."""
    argv = (local_uv().path, "pip", "install", "--python", envs.active / "bin/python", "--find-links", envs.wheels)
    subprocess.run([*argv, *words], check=True, capture_output=True)


def _drifts(envs: Envs, *words: str) -> set[tuple[str, str, str]]:
    return {
        (one["kind"], one["distribution"], one["path"].rpartition("site-packages/")[2]) for one in envs.verify(*words)
    }


def test_a_rebuild_leaves_a_proven_environment_active_and_a_second_one_does_nothing(envs: Envs) -> None:
    found = envs.rebuild()["outcome"]
    assert found["is_new"]
    assert found["record"]["packages"] == {"tiny-a": "1.0", "tiny-b": "1.0"}
    assert found["record"]["proof"] == {"tiny-a": "1.0: tiny_a"}
    assert str(envs.active) == found["path"]
    assert list(envs.site_packages.glob("tiny_a/__pycache__/*.pyc")), "bytecode is compiled"
    program = "import tiny_b.inner.work as w; print(w.work())"
    answer = subprocess.run([envs.active / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "42\n"
    files = [path for path in envs.active.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if path.stat().st_nlink > 1] == [], "an edit must not reach uv's cache"
    again = envs.rebuild()
    assert (again["outcome"]["env_id"], again["outcome"]["is_new"], again["run_id"]) == (found["env_id"], False, "")
    assert envs.standing() == [found["env_id"]]


def test_uv_is_brought_and_checked_by_its_hash(envs: Envs) -> None:
    brought = next((envs.home / "tools").iterdir())
    brought.unlink()
    envs.rebuild()
    assert brought.stat().st_mode & 0o777 == 0o755
    damaged = bytearray(brought.read_bytes())
    damaged[1000] ^= 1
    brought.write_bytes(damaged)
    (envs.site_packages / "tiny_a/__init__.py").unlink()
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 6
    assert "damaged" in failed.err
    assert envs.rebuild()["outcome"]["is_new"]


def test_a_changed_lock_gives_another_environment_and_the_first_can_come_back(envs: Envs) -> None:
    first = envs.rebuild()["outcome"]["env_id"]
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    second = envs.rebuild()["outcome"]["env_id"]
    assert second != first
    listed = envs.opsctl("env", "list", "--json").ok().json()["items"]
    assert [(one["env_id"], one["is_active"]) for one in listed] == [(second, True), (first, False)]
    assert f"{first} is active; before: {second}" in envs.opsctl("env", "activate", first[:14]).ok().out
    assert envs.active.name == first
    assert envs.rebuild()["outcome"]["env_id"] == second, "the lock still says so"


def test_pollution_by_hand_is_named_and_a_rebuild_brings_it_back(envs: Envs) -> None:
    envs.wheel("tiny-b", "3.0")
    first = envs.rebuild()["outcome"]["env_id"]
    packages = envs.site_packages
    (packages / "tiny_a/inner/work.py").write_text("def work() -> int:\n    return 13\n")
    (packages / "tiny_a/inner/__init__.py").unlink()
    (packages / "tiny_a/extra.py").write_text("")
    (packages / "evil.pth").write_text("import sys\n")
    (packages / "sitecustomize.py").write_text("")
    _install(envs, "tiny-b==3.0")
    assert _drifts(envs) >= {
        ("edited", "tiny-a==1.0", "tiny_a/inner/work.py"),
        ("missing", "tiny-a==1.0", "tiny_a/inner/__init__.py"),
        ("added", "tiny-a==1.0", "tiny_a/extra.py"),
        ("intruder", "", "evil.pth"),
        ("intruder", "", "sitecustomize.py"),
        ("foreign", "tiny-b==3.0", "tiny_b-3.0.dist-info"),
    }
    text = envs.opsctl("env", "verify")
    assert text.code == 1
    for words in ("work.py", "evil.pth", "3.0 installed by uv after the build, in place of 1.0", "opsctl env rebuild"):
        assert words in text.out
    refused = envs.opsctl("env", "activate", first)
    assert (refused.code, "drifted" in refused.err) == (1, True)
    second = envs.rebuild()
    assert second["outcome"]["is_new"]
    assert "drifted" in "".join(second["notes"])
    assert envs.verify() == []
    assert (envs.site_packages / "tiny_a/inner/work.py").read_text().endswith("42\n")


def test_what_is_drift_and_what_is_none(envs: Envs) -> None:
    envs.rebuild()
    (envs.site_packages / "tiny_a/__init__.py").touch()
    subprocess.run([envs.active / "bin/python", "-c", "import tiny_a, tiny_b.inner.work"], check=True)
    assert envs.verify() == [], "a new time, and what imports write"
    file = envs.site_packages / "tiny_a/inner/work.py"
    stat = file.stat()
    file.write_text(file.read_text().replace("42", "41"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert envs.verify() == [], "the quick check trusts size and time"
    assert [one["kind"] for one in envs.verify("--full")] == ["edited"]
    (envs.active / "bin/python").unlink()
    assert "python" in {one["kind"] for one in envs.verify()}, "an interpreter that is gone"
    (envs.active / "manifest.json").write_text("{")
    assert [one["path"] for one in envs.verify()] == ["manifest.json"]
    assert "tiny" in envs.opsctl("env", "list").ok().out
    assert envs.rebuild()["outcome"]["is_new"], "whatever was done to it"


def _poison(uv_cache: Path) -> None:
    cached = list(uv_cache.rglob("tiny_a/inner/work.py"))
    assert cached, "uv keeps unpacked wheels in its cache"
    for path in cached:
        path.write_text("def work() -> int:\n    return 13\n")
        (path.parents[2] / "evil.pth").write_text("import sys\n")


def test_an_edited_uv_cache_never_reaches_an_environment(envs: Envs) -> None:
    envs.rebuild()
    _poison(envs.uv_cache)
    (envs.site_packages / "tiny_a/__init__.py").write_text("")
    again = envs.rebuild()
    assert again["outcome"]["is_new"]
    notes = " ".join(again["notes"])
    for words in ("uv's cache holds tiny-a changed", "uv cache clean tiny-a", "evil.pth"):
        assert words in notes
    assert (envs.site_packages / "tiny_a/inner/work.py").read_text().endswith("42\n")
    assert not (envs.site_packages / "evil.pth").exists()
    assert envs.verify("--full") == []


def test_an_edited_uv_cache_without_the_wheel_is_an_error_that_names_it(envs: Envs) -> None:
    before = envs.rebuild()["outcome"]["env_id"]
    _poison(envs.uv_cache)
    (envs.site_packages / "tiny_a/__init__.py").write_text("")
    (envs.wheels / "tiny_a-1.0-py3-none-any.whl").write_bytes(b"")
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "tiny-a" in failed.err
    assert envs.standing() == [before]
    assert envs.active.name == before


def test_a_run_keeps_its_environment_when_another_becomes_active(envs: Envs) -> None:
    first = envs.rebuild()["outcome"]["env_id"]
    envs.configure(jobs={"hold": {"command": ["python", "-c", "import time; time.sleep(600)"], "code": False}})
    run = envs.opsctl("train", "start", "hold", "--json").ok().json()
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    second = envs.rebuild()["outcome"]["env_id"]
    listed = {one["env_id"]: one for one in envs.opsctl("env", "list", "--json").ok().json()["items"]}
    assert listed[first]["used_by"] == [run["run_id"]]
    assert listed[second]["used_by"] == []
    assert run["run"]["spec"]["env"].endswith(first)
