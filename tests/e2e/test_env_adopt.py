"""An environment made by hand: saved as it is, described by a lock as far as that goes, and brought back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.ops.tools import local_uv
from tests.support.envs import Envs
from tests.support.wheels import build_wheel

pytestmark = pytest.mark.tmux

INSIDE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def _pip(root: Path, *words: object) -> None:
    argv = (local_uv().path, "pip", "install", "--no-deps", "--python", root / "bin/python", *words)
    subprocess.run(argv, check=True, capture_output=True)


def _says(root: Path, name: str, body: dict[str, Any]) -> None:
    """Leave the direct_url.json that an installer would."""
    (info,) = (root / INSIDE).glob(f"{name}-*.dist-info")
    (info / "direct_url.json").write_text(json.dumps(body))


@pytest.fixture
def by_hand(envs: Envs, tmp_path: Path) -> Path:
    """A virtual environment whose pieces came from everywhere, and where two were changed."""
    envs.wheel("tiny-a", requires=("tiny-b>=5", "tiny-gone", "tiny-git"))
    for name in ("tiny-git", "tiny-edit", "tiny-lost", "tiny-same", "tiny-other"):
        envs.wheel(name)
    root, local = tmp_path / "by hand", tmp_path / "local"
    subprocess.run([local_uv().path, "venv", "-q", "--python", sys.executable, root], check=True)
    _pip(root, "--find-links", envs.wheels, "tiny-a", "tiny-b==1.0", "tiny-git", "tiny-edit", "tiny-lost")
    shutil.copy(envs.wheels / "tiny_same-1.0-py3-none-any.whl", build_wheel(local, "tiny-same", "1.0"))
    _pip(
        root,
        build_wheel(local, "tiny-other", "1.0", files={"tiny_other/own.py": b""}),
        local / "tiny_same-1.0-py3-none-any.whl",
    )
    (envs.wheels / "tiny_lost-1.0-py3-none-any.whl").unlink()
    _says(root, "tiny_git", {"url": "https://me:secret@host/r", "vcs_info": {"vcs": "git", "commit_id": "ab12"}})
    checkout = tmp_path / "checkout"
    (checkout / ".git" / "refs" / "heads").mkdir(parents=True)
    (checkout / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (checkout / ".git" / "refs" / "heads" / "main").write_text("c0ffee\n")
    _says(root, "tiny_edit", {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    (root / INSIDE / "tiny_edit.pth").write_text(f"{checkout}\n")
    (root / INSIDE / "tiny_a/inner/work.py").write_text("def work() -> int:\n    return 13\n")
    (root / INSIDE / "patch.py").write_text("")
    (root / "empty").mkdir(mode=0o750)
    return root


def _tree(root: Path) -> dict[str, tuple[int, object]]:
    """Modes and contents of everything below."""
    found: dict[str, tuple[int, object]] = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(root))] = (mode, content)
    return found


def test_what_a_lock_can_bring_back_is_pinned_and_the_rest_is_named(envs: Envs, by_hand: Path) -> None:
    found = envs.opsctl("env", "adopt", str(by_hand), "--name", "works", "--json").ok().json()
    unpinned = {one["name"]: one["why"] for one in found["unpinned"]}
    assert unpinned.pop("tiny-other").endswith("and the index has another of it")
    assert unpinned == {
        "tiny-git": "a git checkout: git+https://***@host/r@ab12",
        "tiny-edit": f"an editable install: {(by_hand.parent / 'checkout').as_uri()} (git commit c0ffee)",
        "tiny-lost": "not to be had from where we look: tiny-lost was not found in the cache",
    }
    outside = {one["name"]: one["outside"] for one in found["unpinned"]}
    assert (outside["tiny-edit"], outside["tiny-git"]) == (str(by_hand.parent / "checkout"), "")
    changed = "\n".join(found["changed"])
    for words in ("tiny-a 1.0 was edited", "inner/work.py", "files of no distribution: patch.py", "tiny_edit.pth adds"):
        assert words in changed
    text = (envs.project / "env" / "works.in").read_text()
    for words in (
        "tiny-a===1.0",
        "tiny-same===1.0",
        "# opsctl: without = tiny-git tiny-gone",
        "# not pinned: tiny-lost",
    ):
        assert words in text
    assert "secret" not in text + json.dumps(found)
    built = envs.rebuild("works")["outcome"]
    assert built["record"]["packages"] == {"tiny-a": "1.0", "tiny-b": "1.0", "tiny-same": "1.0"}
    assert "nothing changed" in envs.opsctl("env", "lock", "works").ok().out


def test_the_archive_brings_the_environment_back_as_it_was(envs: Envs, by_hand: Path) -> None:
    before = _tree(by_hand)
    said = envs.opsctl("env", "adopt", str(by_hand)).ok().out
    (archive,) = (envs.home / "adopted").glob("by-hand-*.tar.*")
    archive_id = archive.name.partition(".")[0]
    assert f"`opsctl env restore {archive_id}` brings it back" in said
    assert f"not in the archive: {by_hand.parent / 'checkout'}; `opsctl get` saves it" in said
    assert (envs.project / "env" / "by-hand.lock").is_file()
    assert _tree(by_hand) == before, "adopting changes nothing"
    (listed,) = envs.opsctl("env", "archives", "--json").ok().json()["items"]
    assert (listed["archive_id"], listed["path"], listed["archive"]) == (archive_id, str(by_hand), str(archive))
    assert archive_id in envs.opsctl("env", "archives").ok().out
    taken = envs.opsctl("env", "restore", "by-hand")
    assert (taken.code, "something stands at" in taken.err) == (2, True)
    shutil.rmtree(by_hand)
    envs.opsctl("env", "restore", "by-hand").ok()
    assert _tree(by_hand) == before
    program = "import tiny_a.inner.work as w; print(w.work())"
    done = subprocess.run([by_hand / "bin/python", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "13\n"
    elsewhere = envs.opsctl("env", "restore", archive_id, "--to", str(by_hand.parent / "other")).ok()
    assert f"it lay at {by_hand}" in elsewhere.err
    damaged = bytearray(archive.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    archive.write_bytes(damaged)
    refused = envs.opsctl("env", "restore", archive_id, "--to", str(by_hand.parent / "third"))
    assert (refused.code, "is damaged" in refused.err) == (1, True)
    assert not (by_hand.parent / "third").exists()
    (envs.home / "adopted" / f"{archive_id}.json").write_text("{")
    lost = envs.opsctl("env", "restore", archive_id, "--to", str(by_hand.parent / "third"))
    assert (lost.code, "the manifest of" in lost.err) == (1, True)
    assert envs.opsctl("env", "archives", "--json").ok().json()["items"] == []
    unknown = envs.opsctl("env", "restore", "by-hands")
    assert (unknown.code, f"did you mean {archive_id}?" in unknown.err) == (2, True)


def test_what_is_no_environment_made_by_hand_is_refused_and_nothing_written(envs: Envs, tmp_path: Path) -> None:
    active = envs.rebuild()["outcome"]["path"]
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    for place, words in (
        ("nowhere", "there is no folder"),
        ("wheels", "is no virtual environment: it has no pyvenv.cfg"),
        ("conda", "is a conda environment"),
        (active, "was built by opsctl"),
    ):
        refused = envs.opsctl("env", "adopt", str(tmp_path / place))
        assert (refused.code, words in refused.err) == (2, True), refused.err
    exists = envs.opsctl("env", "adopt", str(tmp_path / "conda"), "--name", "tiny")
    assert (exists.code, "tiny.in exists; nothing was changed" in exists.err) == (2, True)
    assert sorted(path.name for path in envs.lock.parent.iterdir()) == ["tiny.in", "tiny.lock"]
    assert not (envs.home / "adopted").exists()


def test_an_index_that_cannot_be_asked_leaves_archive_and_set(envs: Envs, by_hand: Path) -> None:
    envs.configure(find_links=("https://127.0.0.1:9/none",))
    failed = envs.opsctl("env", "adopt", str(by_hand), "--name", "works", UV_OFFLINE="0", UV_HTTP_RETRIES="0")
    assert failed.code == 5
    (archive,) = (envs.home / "adopted").glob("*.tar.*")
    for words in (str(archive), "could not be locked", "`opsctl env lock works` tries again"):
        assert words in failed.err
    assert not (envs.project / "env" / "works.lock").exists()
    envs.configure()
    envs.wheel("tiny-lost")
    envs.opsctl("env", "lock", "works").ok()
