"""Whatever one does to one file of an environment, a look at it says so and names the file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.env.manifest import dumped, entries, listing
from opsctl.agent.env.verify import check
from opsctl.agent.files import write_record
from opsctl.agent.hashing import digests
from opsctl.records.env import EnvRecord

SITE = "lib/python3/site-packages"
ONE, TWO = f"{SITE}/a/one.py", f"{SITE}/a/two.py"


@pytest.fixture
def env(tmp_path: Path) -> EnvPaths:
    """An environment of one distribution, written down as a build does."""
    root = tmp_path / "ab12-1"
    for name, text in (
        ("a/__init__.py", ""),
        ("a/one.py", "one = 1\n"),
        ("a/two.py", "two = 2\n"),
        ("a/lib.so", "\x7f"),
    ):
        (root / SITE / name).parent.mkdir(parents=True, exist_ok=True)
        (root / SITE / name).write_text(text)
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(sys.executable)
    seen = listing(root).files
    hashes = dict(digests(root, (path for path, one in seen.items() if one.link is None)))
    (root / "manifest.json").write_bytes(dumped({"a==1": entries(seen, hashes)}))
    version = ".".join(map(str, sys.version_info[:3]))
    write_record(root / "env.json", EnvRecord("s", "ab12", "1", 0.0, version, "p"))
    return EnvPaths(root)


def _keep_time(path: Path, text: str) -> None:
    stat = path.stat()
    path.write_text(text)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _link(path: Path, to: str | Path) -> None:
    path.unlink()
    path.symlink_to(to)


# what is done, and what a full look says of it; those with a star need one
DEEDS: dict[str, tuple[Callable[[Path], object], set[tuple[str, str]]]] = {
    "one byte more": (lambda root: (root / ONE).write_text("one = 10\n"), {("edited", ONE)}),
    "another byte": (lambda root: (root / ONE).write_text("one = 7\n"), {("edited", ONE)}),
    "another byte at the same time*": (lambda root: _keep_time(root / ONE, "one = 7\n"), {("edited", ONE)}),
    "emptied": (lambda root: (root / ONE).write_text(""), {("edited", ONE)}),
    "deleted": (lambda root: (root / ONE).unlink(), {("missing", ONE)}),
    "moved": (
        lambda root: (root / ONE).rename(root / SITE / "a/three.py"),
        {("missing", ONE), ("added", f"{SITE}/a/three.py")},
    ),
    "a folder deleted": (
        lambda root: shutil.rmtree(root / SITE / "a"),
        {("missing", f"{SITE}/a/{name}") for name in ("__init__.py", "one.py", "two.py", "lib.so")},
    ),
    "a link in its place": (lambda root: _link(root / ONE, "two.py"), {("edited", ONE)}),
    "a folder in its place": (
        lambda root: ((root / ONE).unlink(), (root / ONE).mkdir(), (root / ONE / "x").touch()),
        {("missing", ONE), ("added", f"{ONE}/x")},
    ),
    "a library at the same time*": (
        lambda root: _keep_time(root / SITE / "a/lib.so", "\x7e"),
        {("edited", f"{SITE}/a/lib.so")},
    ),
    "a file beside": (lambda root: (root / SITE / "a/new.so").touch(), {("added", f"{SITE}/a/new.so")}),
    "a module": (lambda root: (root / SITE / "b.py").touch(), {("added", f"{SITE}/b.py")}),
    "bytecode without a source": (lambda root: (root / SITE / "b.pyc").touch(), {("added", f"{SITE}/b.pyc")}),
    "a program": (lambda root: (root / "bin" / "tool").touch(), {("added", "bin/tool")}),
    "a start hook": (lambda root: (root / SITE / "x.pth").touch(), {("intruder", f"{SITE}/x.pth")}),
    "touched": (lambda root: os.utime(root / ONE), set()),
    "rewritten as it was": (lambda root: (root / ONE).write_text("one = 1\n"), set()),
    "imported": (lambda root: (root / SITE / "a/__pycache__").mkdir(), set()),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_deed_is_named(env: EnvPaths, deed: str) -> None:
    assert check(env, full=True).is_clean
    act, expected = DEEDS[deed]
    act(env.root)
    assert {(one.kind, one.path) for one in check(env, full=True).drifts} == expected
    quick = {(one.kind, one.path) for one in check(env, full=False).drifts}
    assert quick == (set() if deed.endswith("*") else expected)


def test_an_interpreter_that_changed_or_went_is_named(env: EnvPaths) -> None:
    (env.root / "bin" / "python").unlink()
    (env.root / "bin" / "python").write_text("#!/bin/sh\necho 3.99.1\n")
    (env.root / "bin" / "python").chmod(0o755)
    found = {one.detail for one in check(env, full=False).drifts if one.kind == "python"}
    assert found == {f"is 3.99.1 now; built for {'.'.join(map(str, sys.version_info[:3]))}"}
    (env.root / "bin" / "python").write_text("#!/nowhere\n")
    (detail,) = [one.detail for one in check(env, full=False).drifts if one.kind == "python"]
    assert detail.startswith("does not start")
