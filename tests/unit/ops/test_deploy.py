"""What a run's sources are, and how they are called."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from opsctl.config import CodeConfig
from opsctl.errors import ConfigError
from opsctl.ops.deploy import describe
from opsctl.ops.source_files import files, pack


@pytest.fixture
def tree(project: Path) -> Path:
    """A small project."""
    for name in ("src/a.py", "src/deep/b.py", "src/__pycache__/a.pyc", "src/x.pyc", "other/c.txt", "one.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    (project / "src/a.py").chmod(0o755)
    return project


CODE = CodeConfig(paths=("src", "one.yaml"))


def git(folder: Path, *words: str) -> str:
    """Run git as somebody."""
    who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ("git", "-C", str(folder), *words), env={**os.environ, **who}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_only_what_is_named_and_not_excluded(tree: Path) -> None:
    assert [name for name, _ in files(tree, CODE)] == ["one.yaml", "src/a.py", "src/deep/b.py"]


@pytest.mark.parametrize("path", ["nothing", "../project2", "/etc"])
def test_paths_that_are_no_sources(tree: Path, path: str) -> None:
    (tree.parent / "project2").mkdir()
    with pytest.raises(ConfigError, match=path):
        files(tree, CodeConfig(paths=(path,)))


def test_links_give_contents_but_no_folders(tree: Path) -> None:
    (tree / "src/link.py").symlink_to("a.py")
    assert "src/link.py" in dict(files(tree, CODE))
    (tree / "src/all").symlink_to(tree)
    with pytest.raises(ConfigError, match="link to a folder"):
        files(tree, CODE)


def test_the_same_contents_make_the_same_archive(tree: Path) -> None:
    first = pack(files(tree, CODE))
    os.utime(tree / "src/a.py", (1, 1))
    assert pack(files(tree, CODE)) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert {member.name: member.mode for member in tar} == {
            "one.yaml": 0o444,
            "src/a.py": 0o555,
            "src/deep/b.py": 0o444,
        }
    (tree / "src/a.py").write_text("changed")
    assert pack(files(tree, CODE)) != first


def test_names_by_commit_or_content(tree: Path) -> None:
    sha256 = hashlib.sha256(b"").hexdigest()
    assert describe(tree, CODE, sha256).is_dirty
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "first")
    commit = git(tree, "rev-parse", "HEAD")
    clean = describe(tree, CODE, sha256)
    assert (clean.name, clean.origin, clean.is_dirty) == (f"{commit[:12]}-{sha256[:8]}", commit, False)
    (tree / "other/c.txt").write_text("not part of the sources")
    assert not describe(tree, CODE, sha256).is_dirty
    (tree / "src/a.py").write_text("changed")
    dirty = describe(tree, CODE, sha256)
    assert (dirty.name, dirty.is_dirty) == (sha256[:16], True)
    assert commit in dirty.origin
