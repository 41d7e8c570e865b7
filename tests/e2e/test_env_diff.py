"""Locks and environments compared and exported through the installed command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.ops.tools import local_uv
from tests.support.envs import Envs

pytestmark = pytest.mark.tmux


def _diff(envs: Envs, a: str, b: str) -> dict[str, Any]:
    ended = envs.opsctl("env", "diff", a, b, "--json")
    found: dict[str, Any] = ended.json()
    assert ended.code == (0 if found["is_same"] else 1), ended.err
    return found


def test_two_locks_differ_by_version_and_by_hash(envs: Envs) -> None:
    other = envs.project / "other.lock"
    other.write_text(envs.lock.read_text())
    assert _diff(envs, "tiny", "other.lock")["is_same"]
    envs.wheel("tiny-a", "2.0")
    envs.wheel("tiny-c")
    envs.wheel("tiny-b", files={"tiny_b/more.py": b""})
    envs.pins("tiny-a==2.0", "tiny-b==1.0", "tiny-c==1.0")
    found = _diff(envs, "other.lock", "tiny")
    assert (found["added"], found["removed"], found["changed"], found["rehashed"]) == (
        {"tiny-c": "1.0"}, {}, {"tiny-a": "1.0 -> 2.0"}, ["tiny-b"]
    )  # fmt: skip
    text = envs.opsctl("env", "diff", "tiny", "other.lock")
    assert text.code == 1
    for words in ("removed  tiny-c 1.0", "changed  tiny-a 2.0 -> 1.0", "rehashed tiny-b", "they differ"):
        assert words in text.out
    missing = envs.opsctl("env", "diff", "tiny", "nowhere.lock")
    assert (missing.code, "nowhere.lock is not there" in missing.err) == (3, True)


def test_an_environment_is_its_lock_until_somebody_changes_it(envs: Envs) -> None:
    envs.pins("tiny-a==1.0", "tiny-b==1.0")
    digest = "0" * 64
    envs.lock.write_text(envs.lock.read_text() + f"colorama==0.4 ; sys_platform == 'win32' --hash=sha256:{digest}\n")
    envs.rebuild()
    assert _diff(envs, "tiny", "active")["is_same"], "what a marker leaves out is no difference"
    envs.wheel("tiny-b", "3.0")
    words = ("pip", "install", "--python", envs.active / "bin/python", "--find-links", envs.wheels, "tiny-b==3.0")
    subprocess.run([local_uv().path, *words], check=True, capture_output=True)
    found = _diff(envs, envs.active.name[:12], "tiny")
    assert (found["changed"], found["added"], found["removed"]) == ({"tiny-b": "3.0 -> 1.0"}, {}, {})
    unknown = envs.opsctl("env", "diff", "tiny", "beef")
    assert (unknown.code, "no environment 'beef' on the target" in unknown.err) == (2, True)


def test_two_targets_are_compared_file_by_file(envs: Envs, tmp_path: Path) -> None:
    script = b"#!python\nprint('x')\n"
    envs.wheel("tiny-b", "2.0", files={"tiny_b-2.0.data/scripts/tiny": script})
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    targets = {
        "here": {"home": str(envs.home), "python": sys.executable},
        "there": {"home": str(tmp_path / "another target"), "python": sys.executable},
    }
    envs.configure(targets=targets)
    envs.rebuild()
    envs.rebuild("--target", "there")
    assert (envs.active / "bin" / "tiny").read_bytes().startswith(b"#!/")
    assert _diff(envs, "here:", "there:")["is_same"], "where an environment lies is no difference"
    (envs.site_packages / "tiny_a/inner/work.py").write_text("def work() -> int:\n    return 13\n")
    (envs.site_packages / "tiny_a/inner/__init__.py").unlink()
    (envs.site_packages / "evil.pth").write_text("")
    with (envs.active / "bin" / "tiny").open("ab") as file:
        file.write(b"print('y')\n")
    found = _diff(envs, "there:active", "here:")
    assert {(one["distribution"], one["kind"], one["path"]) for one in found["files"]} == {
        ("", "added", "site-packages/evil.pth"),
        ("tiny-a", "changed", "site-packages/tiny_a/inner/work.py"),
        ("tiny-a", "removed", "site-packages/tiny_a/inner/__init__.py"),
        ("tiny-b", "changed", "bin/tiny"),
    }
    assert "files    tiny-a: 2 differ" in envs.opsctl("env", "diff", "there:", "here:").out
    unknown = envs.opsctl("env", "diff", "here:", "their:")
    assert (unknown.code, "did you mean 'there'?" in unknown.err) == (3, True)


def test_an_export_is_a_requirements_file_of_what_stands(envs: Envs) -> None:
    envs.rebuild()
    assert envs.opsctl("env", "export").ok().out.splitlines()[1:] == ["tiny-a==1.0", "tiny-b==1.0"]
    envs.opsctl("env", "export", "--hashes", "-o", "all.txt").ok()
    text = (envs.project / "all.txt").read_text()
    assert text.count("--hash=sha256:") == 2
    folder = envs.project / "fresh"
    uv = local_uv().path
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    words = ("pip", "install", "-q", "--python", folder / "bin/python", "--find-links", envs.wheels, "-r", "all.txt")
    subprocess.run([uv, *words], check=True, cwd=envs.project)
    program = "import tiny_a, tiny_b; print(tiny_a.VERSION, tiny_b.VERSION)"
    done = subprocess.run([folder / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 1.0\n"
    wrong = envs.opsctl("env", "export", "-o", "no/such/folder")
    assert (wrong.code, "cannot write no/such/folder" in wrong.err) == (2, True)


def test_an_export_says_what_came_from_no_index(envs: Envs) -> None:
    envs.rebuild()
    info = next(envs.site_packages.glob("tiny_b-*.dist-info"))
    origin = {"url": "https://me:secret@host/repo.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    other = next(envs.site_packages.glob("tiny_a-*.dist-info"))
    (other / "direct_url.json").write_text(json.dumps({"url": "file:///src/a", "dir_info": {"editable": True}}))
    found = envs.opsctl("env", "export").ok()
    assert found.out.splitlines()[1:] == [
        "# tiny-a==1.0 came from an editable install: file:///src/a",
        "tiny-b @ git+https://***@host/repo.git@ab12",
    ]
    assert "secret" not in found.out + found.err
    assert "tiny-a 1.0 came from an editable install (file:///src/a) and is only a comment" in found.err


def test_an_environment_whose_manifest_is_gone_is_named(envs: Envs) -> None:
    envs.rebuild()
    (envs.active / "manifest.json").write_text("{")
    failed = envs.opsctl("env", "diff", "tiny", "active")
    assert (failed.code, "manifest.json cannot be read any more" in failed.err) == (1, True)
    assert "tiny-a==1.0" in envs.opsctl("env", "export").ok().out
    (envs.active / "env.json").write_text("{")
    failed = envs.opsctl("env", "export")
    assert (failed.code, "has no readable env.json" in failed.err) == (1, True)
    (envs.active / "cache-key.json").write_text("{")
    (envs.active / "env.json").unlink()
    assert "0 removed" in envs.opsctl("env", "prune").ok().out, "nothing that might be somebody's is taken"
    before = envs.active.name
    assert envs.rebuild()["outcome"]["is_new"]
    assert before in envs.standing(), "runs may live in it"


def test_an_export_does_not_replace_a_fifo(envs: Envs) -> None:
    os.mkfifo(envs.project / "fifo")
    refused = envs.opsctl("env", "export", "-o", "fifo")
    assert (refused.code, "fifo is a FIFO" in refused.err) == (2, True), refused.err
    assert (envs.project / "fifo").is_fifo()
