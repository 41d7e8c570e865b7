"""Drift from listings alone: what is edited, missing, added, foreign or an intruder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.env import drift
from opsctl.agent.env.manifest import Entry, Listing, Manifest, Seen, dumped, entries, listing, read, source_of, totals
from opsctl.agent.env.wheels import Distribution, Recorded

SITE = "lib/python3.11/site-packages"


def _manifest(**files: Entry) -> Manifest:
    return {"a==1.0": {f"{SITE}/a/{name}.py": entry for name, entry in files.items()}}


def _listing(**files: Seen) -> Listing:
    return Listing({f"{SITE}/a/{name}.py": seen for name, seen in files.items()}, ())


BUILT = _manifest(one=Entry(3, 10, "aa"), two=Entry(4, 10, "bb"))


def _found(now: Listing, hashes: dict[str, str], *, full: bool = False) -> list[tuple[str, str]]:
    compared = drift.compare(BUILT, now)
    edited = drift.really_edited(BUILT, compared, lambda asked: {one: hashes.get(one, "?") for one in asked}, full=full)
    return [(one.kind, one.path.rpartition("/")[2]) for one in drift.findings(BUILT, compared, edited, (), SITE)]


def test_the_same_files_are_no_drift() -> None:
    assert _found(_listing(one=Seen(3, 10), two=Seen(4, 10)), {}) == []


def test_another_size_is_an_edit_without_hashing() -> None:
    assert _found(_listing(one=Seen(5, 10), two=Seen(4, 10)), {}) == [("edited", "one.py")]


def test_another_time_is_settled_by_the_hash() -> None:
    now = _listing(one=Seen(3, 11), two=Seen(4, 12))
    assert _found(now, {f"{SITE}/a/one.py": "aa", f"{SITE}/a/two.py": "cc"}) == [("edited", "two.py")]


def test_a_full_look_hashes_what_looks_the_same() -> None:
    now = _listing(one=Seen(3, 10), two=Seen(4, 10))
    assert _found(now, {f"{SITE}/a/one.py": "xx", f"{SITE}/a/two.py": "bb"}, full=True) == [("edited", "one.py")]


def test_missing_and_added_files() -> None:
    now = _listing(one=Seen(3, 10), three=Seen(1, 1))
    assert sorted(_found(now, {})) == [("added", "three.py"), ("missing", "two.py")]


def test_bytecode_of_known_sources_is_no_drift_and_of_unknown_ones_is() -> None:
    known, stray = f"{SITE}/a/__pycache__/one.cpython-311.pyc", f"{SITE}/a/__pycache__/ghost.cpython-311.pyc"
    now = Listing(_listing(one=Seen(3, 10), two=Seen(4, 10)).files, (known, stray))
    assert drift.compare(BUILT, now).added == (stray,)


def test_what_python_runs_at_start_is_an_intruder() -> None:
    names = ("x.pth", "sitecustomize.py", "usercustomize/__init__.py", "a/x.pth")
    now = Listing(
        {**_listing(one=Seen(3, 10), two=Seen(4, 10)).files, **{f"{SITE}/{n}": Seen(1, 1) for n in names}}, ()
    )
    compared = drift.compare(BUILT, now)
    kinds = {one.path.removeprefix(f"{SITE}/"): one.kind for one in drift.findings(BUILT, compared, (), (), SITE)}
    assert kinds == {
        "x.pth": "intruder",
        "sitecustomize.py": "intruder",
        "usercustomize/__init__.py": "intruder",
        "a/x.pth": "added",
    }


def test_a_foreign_distribution_is_one_finding_and_says_whom_it_replaced() -> None:
    info = f"{SITE}/a-2.0.dist-info"
    files = {f"{SITE}/a/new.py": Seen(1, 1), f"{info}/METADATA": Seen(1, 1), f"{info}/RECORD": Seen(1, 1)}
    now = Listing({**_listing(one=Seen(3, 10), two=Seen(4, 10)).files, **files}, ())
    foreign = Distribution("a", "2.0", info, (Recorded(f"{SITE}/a/new.py", "sha256", "00"),), "pip")
    found = drift.findings(BUILT, drift.compare(BUILT, now), (), (foreign,), SITE)
    assert [(one.kind, one.distribution, one.detail) for one in found] == [
        ("foreign", "a==2.0", "2.0 installed by pip after the build, in place of 1.0")
    ]


def test_the_files_of_a_replaced_version_go_with_the_one_that_replaced_it() -> None:
    info = f"{SITE}/a-2.0.dist-info"
    now = Listing({f"{SITE}/a/one.py": Seen(9, 11), f"{info}/METADATA": Seen(1, 1)}, ())
    rows = (Recorded(f"{SITE}/a/one.py", "sha256", "00"), Recorded(f"{info}/METADATA", "sha256", "00"))
    compared = drift.compare(BUILT, now)
    other = Distribution("b", "2.0", info, rows, "pip")
    assert len(drift.findings(BUILT, compared, compared.edited, (other,), SITE)) == 3, "another's files are no excuse"
    (found,) = drift.findings(BUILT, compared, compared.edited, (Distribution("a", "2.0", info, rows, "pip"),), SITE)
    assert found.detail == "2.0 installed by pip after the build, in place of 1.0 (files changed: 1, files gone: 1)"


NAMES = st.text("abcdef/", min_size=1, max_size=8).filter(lambda name: "//" not in name and name.strip("/") == name)


@given(st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12), st.data())
def test_every_file_of_both_sides_lands_in_exactly_one_pile(
    built: dict[str, tuple[int, int]], data: st.DataObject
) -> None:
    manifest: Manifest = {"a==1": {name: Entry(size, time, "aa") for name, (size, time) in built.items()}}
    now = data.draw(st.dictionaries(NAMES, st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12))
    found = drift.compare(manifest, Listing({name: Seen(*facts) for name, facts in now.items()}, ()))
    piles = [*found.edited, *found.suspect, *found.same, *found.missing, *found.added]
    assert sorted(piles) == sorted(built.keys() | now.keys())


def test_a_manifest_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "env"
    (root / "lib" / "__pycache__").mkdir(parents=True)
    (root / "lib" / "x.py").write_text("1")
    (root / "lib" / "__pycache__" / "x.cpython-311.pyc").write_text("1")
    (root / "link").symlink_to("lib")
    (root / "env.json").write_text("{}")
    seen = listing(root)
    assert sorted(seen.files) == ["lib/x.py", "link"]
    assert [source_of(path) for path in seen.bytecode] == ["lib/x.py"]
    manifest: Manifest = {"x==1": entries(seen.files, {"lib/x.py": "aa"})}
    (tmp_path / "manifest.json").write_bytes(dumped(manifest))
    assert read(tmp_path / "manifest.json") == manifest
    assert totals(manifest) == (2, 1)


@pytest.mark.parametrize(
    "name",
    [
        "one.cpython-311.pyc",
        "one.cpython-311.opt-1.pyc",
        "one.cpython-312.pyc",
        "one.cpython-311.pyc.140031",  # half written when its process ended
        "one.work-12.py311.nbi",  # Numba's own, of a function of that module
        "one.work-12.py311.1.nbc",
    ],
)
def test_what_imports_and_compilers_leave_beside_a_source_is_no_drift(name: str) -> None:
    now = Listing(_listing(one=Seen(3, 10), two=Seen(4, 10)).files, (f"{SITE}/a/__pycache__/{name}",))
    assert drift.compare(BUILT, now).added == ()
