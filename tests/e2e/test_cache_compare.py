"""`cache diff` and `cache explain`: field by field, file by file, value by value."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.caches import COMPILE, Caches

pytestmark = pytest.mark.tmux

RECIPE = "data: {rows: 4}\nname: tiny\n"


@pytest.fixture
def project(caches: Caches) -> Caches:
    """A job with sources and a recipe, prewarmed."""
    source = caches.project / "src"
    source.mkdir()
    (source / "warm.py").write_text(COMPILE)
    (source / "tiny.yaml").write_text(RECIPE)
    prewarm = [sys.executable, "{code}/src/warm.py", "{code}/src/tiny.yaml"]
    caches.configure(small={"command": ["true"], "prewarm": prewarm, "code": True})
    settings = json.loads((caches.project / "opsctl.yaml").read_text())
    (caches.project / "opsctl.yaml").write_text(json.dumps({**settings, "code": {"paths": ["src"]}}))
    caches.prewarm()
    return caches


def test_explain_names_the_value_that_changed_and_no_comment(project: Caches) -> None:
    fits = project.opsctl("cache", "explain", "--json").ok().json()
    assert (fits["matches"], fits["explanation"]["conditions"]) == (True, [])
    recipe, source = project.project / "src/tiny.yaml", project.project / "src/warm.py"
    recipe.write_text("# tuned\n" + RECIPE)
    source.write_text(COMPILE + "\n# a comment\n")
    project.opsctl("cache", "explain").ok()
    project.opsctl("cache", "verify").ok()
    recipe.write_text(RECIPE.replace("4", "8"))
    source.write_text(COMPILE + "\nfurther = 1\n")
    changed = project.opsctl("cache", "explain")
    assert (changed.code, "- src/tiny.yaml: data.rows: 8 | 4" in changed.out) == (1, True), changed.out
    assert "- source src/warm.py: " in changed.out
    assert "cache verify small" in changed.out


def _rekey(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def test_explain_says_which_field_of_the_key_differs(project: Caches) -> None:
    saved = project.snapshot()["snapshot"]["snapshot_id"]
    _rekey(project.snapshots / f"{saved}.json", '"cpu_isa": "', '"cpu_isa": "other ')
    other = project.opsctl("cache", "explain", saved[:12])
    assert other.code == 1, other
    row = next(row for row in other.out.splitlines() if row.strip().startswith("cpu_isa"))
    assert (" NO " in row, " other " in row, "very CPU" in row) == (True, True, True)
    assert "it does not fit" in other.out
    assert project.opsctl("cache", "explain", "zz").code == 2


def test_diff_compares_files_by_content_and_keys_by_field(project: Caches) -> None:
    saved = project.snapshot()["snapshot"]["snapshot_id"]
    same = project.opsctl("cache", "diff", "live", saved, "--job", "small", "--json").ok().json()
    assert (same["is_equal"], same["diff"]["num_same"]) == (True, 2)
    root = project.folder()
    (root / "triton/ab/kernel.so").write_bytes(b"changed")
    (root / "triton/ab/new.so").write_bytes(b"new")
    (root / "inductor/ab/kernel.so").unlink()
    differs = project.opsctl("cache", "diff", root.name, saved, "--json")
    found = differs.json()["diff"]
    assert (differs.code, found["only_a"], found["only_b"]) == (1, ["triton/ab/new.so"], ["inductor/ab/kernel.so"])
    assert (found["changed"], found["num_same"]) == (["triton/ab/kernel.so"], 0)
    _rekey(project.snapshots / f"{saved}.json", '"gpus": "cpu"', '"gpus": "H200"')
    text = project.opsctl("cache", "diff", "live", saved, "--job", "small").out
    assert "gpus: cpu | H200" in text
    assert "only in A: triton/ab/new.so" in text
