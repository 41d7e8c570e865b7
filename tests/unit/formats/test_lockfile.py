"""Sets and locks as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.errors import ConfigError
from opsctl.formats.lockfile import (
    Pin,
    changes,
    exact_requirements,
    fingerprint,
    parse_lock,
    parse_options,
    requirement_names,
)

LOCK = """# written by hand
a==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via c
b-c==2.0+cpu ; python_version < "3.13" --hash=sha256:cc
D_e[extra]==3 --hash=sha256:dd  # last
"""


def test_rows_may_go_on_carry_markers_and_comments() -> None:
    assert parse_lock(LOCK, label="x.lock") == (
        Pin("a", "1.0", ("sha256:aa", "sha256:bb"), 2),
        Pin("b-c", "2.0+cpu", ("sha256:cc",), 6, 'python_version < "3.13"'),
        Pin("d-e", "3", ("sha256:dd",), 7),
    )


@pytest.mark.parametrize("row", ["a>=1 --hash=sha256:aa", "a", "a==1.* --hash=sha256:aa", "./a.whl", "-r other.txt"])
def test_anything_but_a_pin_with_hashes_is_refused_with_its_line(row: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.lock:2: "):
        parse_lock(f"# one\n{row}\n", label="x.lock")


def test_one_distribution_is_pinned_once() -> None:
    with pytest.raises(ConfigError, match=r"x\.lock:2: a is pinned twice, first in line 1"):
        parse_lock("a==1 --hash=sha256:aa\nA==2 --hash=sha256:bb\n", label="x.lock")


def test_options_are_read_and_unknown_ones_refused() -> None:
    options = parse_options("# opsctl: python = 3.11\n#opsctl: torch-backend=cpu\n# opsctl: direct = a b\n", label="x")
    assert (options.python, options.torch_backend, options.direct) == ("3.11", "cpu", ("a", "b"))
    with pytest.raises(ConfigError, match=r"x\.in:1: unknown option 'pyton'"):
        parse_options("# opsctl: pyton = 3.11\n", label="x.in")


def test_a_set_may_be_complete_and_go_without() -> None:
    options = parse_options("# opsctl: complete = yes\n# opsctl: without = a, b\n", label="x.in")
    assert (options.is_complete, options.without) == (True, ("a", "b"))
    assert not parse_options("# opsctl: complete = no\n", label="x.in").is_complete
    with pytest.raises(ConfigError, match=r"x\.in:2: complete is 'maybe'"):
        parse_options("a==1\n# opsctl: complete = maybe\n", label="x.in")


def test_the_names_that_a_set_asks_for() -> None:
    text = "# c\nTorch===2.13.0\n  numpy>=2 # why\n-r other.in\nPy_YAML[x]\nnumpy\n"
    assert requirement_names(text) == ("torch", "numpy", "py-yaml")


def _pins(text: str) -> tuple[Pin, ...]:
    return parse_lock(text, label="x")


def test_a_fingerprint_ignores_layout_and_comments_and_nothing_else() -> None:
    def of(text: str, python: str = "3.11.7", platform: str = "p") -> str:
        return fingerprint(_pins(text), python=python, platform=platform)

    one = "a==1 --hash=sha256:aa --hash=sha256:bb\nb==1 --hash=sha256:cc\n"
    same = "# note\nb==1 \\\n  --hash=sha256:cc\nA==1 --hash=sha256:bb --hash=sha256:aa\n"
    assert of(one) == of(same)
    others = [one.replace("a==1", "a==2"), one.replace("aa", "ab"), one.replace("b==1", "c==1")]
    names = {of(one), *map(of, others), of(one, python="3.11.8"), of(one, platform="q")}
    assert len(names) == 6


def test_the_installer_gets_versions_that_match_nothing_else() -> None:
    assert exact_requirements(_pins('a==1 ; os_name == "nt" --hash=sha256:aa\n')) == (
        'a===1 ; os_name == "nt" --hash=sha256:aa\n'
    )


def test_changes_between_two_locks() -> None:
    old = _pins("a==1 --hash=sha256:aa\nb==1 --hash=sha256:bb\nc==1 --hash=sha256:cc\n")
    new = _pins("a==2 --hash=sha256:aa\nb==1 --hash=sha256:b2\nd==1 --hash=sha256:dd\n")
    found = changes(old, new)
    assert (found.added, found.removed, found.changed) == ({"d": "1"}, {"c": "1"}, {"a": "1 -> 2"})
    assert found.rehashed == ("b",)
    assert not changes(old, old)


VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}(\+[a-z]{1,4})?", fullmatch=True)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True)


@given(st.dictionaries(NAMES, VERSIONS, min_size=1, max_size=6))
def test_what_is_written_is_read_back(wanted: dict[str, str]) -> None:
    text = "".join(f"{name}=={version} \\\n    --hash=sha256:00\n    # via x\n" for name, version in wanted.items())
    assert {pin.name: pin.version for pin in parse_lock(text, label="x")} == wanted
