"""Installed files held against the RECORD of their wheels."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from opsctl.agent.env.install import poisoned
from opsctl.agent.env.manifest import listing
from opsctl.agent.env.wheels import Mismatch, check_pins, distributions, mismatches, parse_record
from opsctl.agent.hashing import digests
from opsctl.formats.lockfile import Pin

SITE = "lib/python3/site-packages"


def _install(root: Path, name: str, files: dict[str, bytes]) -> None:
    """A distribution as an installer leaves it."""
    info = root / SITE / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    rows = []
    for path, data in files.items():
        target = root / SITE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    record = [*rows, f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join(record) + "\n")


def _wrong(root: Path, venv: frozenset[str] = frozenset()) -> set[tuple[str, str, str]]:
    files = listing(root).files
    hashes = dict(digests(root, files))
    found = mismatches(root, distributions(root, root / SITE), files, hashes, venv)
    return {(one.distribution, one.path.removeprefix(f"{SITE}/"), one.problem) for one in found}


def test_what_the_wheel_brought_is_right(tmp_path: Path) -> None:
    _install(tmp_path, "a", {"a/__init__.py": b"", "a/b.py": b"x"})
    assert _wrong(tmp_path) == set()


def test_edited_missing_and_stray_files_are_named(tmp_path: Path) -> None:
    _install(tmp_path, "a", {"a/__init__.py": b"", "a/b.py": b"x", "a/c.py": b"y"})
    (tmp_path / SITE / "a/b.py").write_bytes(b"z")
    (tmp_path / SITE / "a/c.py").unlink()
    (tmp_path / SITE / "a/d.py").write_bytes(b"")
    (tmp_path / SITE / "e.pth").write_bytes(b"")
    (tmp_path / "pyvenv.cfg").write_bytes(b"")
    assert _wrong(tmp_path, frozenset({"pyvenv.cfg"})) == {
        ("a==1.0", "a/b.py", "edited"),
        ("a==1.0", "a/c.py", "missing"),
        ("a==1.0", "a/d.py", "added"),
        ("", "e.pth", "added"),
    }


def test_a_file_that_two_wheels_bring_is_right_if_it_is_one_of_them(tmp_path: Path) -> None:
    _install(tmp_path, "a", {"tests/__init__.py": b"of a"})
    _install(tmp_path, "b", {"tests/__init__.py": b"of b"})
    assert _wrong(tmp_path) == set()
    (tmp_path / SITE / "tests/__init__.py").write_bytes(b"of nobody")
    assert {problem for _, _, problem in _wrong(tmp_path)} == {"edited"}


def test_a_record_row_may_lead_out_of_site_packages_and_need_no_hash() -> None:
    rows = parse_record('"../../../bin/a b",sha256=AAAA,3\na/x.py,,\na/__pycache__/x.pyc,,\n', folder=SITE)
    assert [(row.path, row.algorithm) for row in rows] == [("bin/a b", "sha256"), (f"{SITE}/a/x.py", "")]


def test_what_is_installed_is_exactly_what_is_pinned(tmp_path: Path) -> None:
    _install(tmp_path, "a", {})
    _install(tmp_path, "c", {})
    found = distributions(tmp_path, tmp_path / SITE)
    pins = (
        Pin("a", "2.0", ("x",), 1),
        Pin("b", "1.0", ("x",), 2),
        Pin("d", "1.0", ("x",), 3, marker="os_name == 'nt'"),
    )
    assert check_pins(found, pins) == (
        "b==1.0 is not there",
        "c==1.0 is not in the lock",
        "a is 1.0 instead of 2.0",
    )


def test_a_poisoned_cache_is_told_by_package_with_the_way_out() -> None:
    found = poisoned(
        (Mismatch("a==1", "a/x.py", "edited"), Mismatch("a==1", "a/y.py", "missing"), Mismatch("", "e.pth", "added"))
    )
    assert found == (
        "uv's cache holds a changed: a/x.py is edited (and 1 more); `uv cache clean a` on the target clears it",
        "uv's cache holds e.pth, which no wheel brought; `uv cache clean` on the target clears it",
    )
