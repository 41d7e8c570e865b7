"""What an adopted environment's set says, and how uv's refusals are read."""

from __future__ import annotations

import pytest

from opsctl.formats.lockfile import parse_options, requirement_names
from opsctl.ops.env_adopt import Unpinned, not_offered, set_text, sort, unpinnable
from opsctl.records.env import Adopted, AdoptedDistribution, Origin

INDEX = Origin("index")
TORCH = AdoptedDistribution("torch", "2.13.0+cu130", INDEX, requires=("triton", "sympy"))
TRITON = AdoptedDistribution("triton", "3.5.0", INDEX)
PIP = AdoptedDistribution("pip", "26.0", INDEX)


def _adopted(*found: AdoptedDistribution) -> Adopted:
    return Adopted("v-1", "/root/v", "/h/v-1.tar.zst", 1.0, 1, 1.0, 1.0, "3.11.7", "x86_64", "2.36", found)


def test_a_set_says_how_it_is_to_be_locked_and_what_it_lacks() -> None:
    lost = Unpinned("engine", "0.1", "an editable install: file:///src")
    text = set_text(_adopted(), [TRITON, TORCH, PIP], [lost], target="gpu")
    options = parse_options(text, label="v.in")
    assert (options.python, options.platform, options.torch_backend) == ("3.11", "x86_64-manylinux_2_36", "cu130")
    assert (options.is_complete, options.without, options.direct) == (True, ("sympy",), ("torch",))
    assert requirement_names(text) == ("pip", "torch", "triton")
    assert "torch==2.13.0+cu130\ntriton===3.5.0\n" in text
    assert text.endswith("# not pinned: engine 0.1: an editable install: file:///src\n")


ORIGINS = {
    "file": (Origin("file", "file:///x.whl"), "a local wheel whose hash nobody kept"),
    "editable": (Origin("editable", "file:///src"), "an editable install"),
    "git": (Origin("git", "git+https://h/r@ab"), "a git checkout: git+https://h/r@ab"),
    "url": (Origin("url", "https://h/x.whl", "aa"), "installed from an address"),
    "unknown": (Origin("unknown", "setup.py"), "of unknown origin"),
}


@pytest.mark.parametrize("kind", ORIGINS)
def test_what_no_index_has_is_told_apart(kind: str) -> None:
    origin, words = ORIGINS[kind]
    assert words in unpinnable(AdoptedDistribution("x", "1", origin))
    pinned, unpinned = sort([AdoptedDistribution("x", "1", origin), PIP])
    assert ([one.name for one in pinned], [one.name for one in unpinned]) == (["pip"], ["x"])


def test_a_local_wheel_with_a_hash_may_be_the_indexs_own() -> None:
    assert unpinnable(AdoptedDistribution("x", "1", Origin("file", "file:///x.whl", "aa"))) == ""
    assert unpinnable(AdoptedDistribution("x", "", INDEX)) == "it says no version"


# as uv 0.13 says it
REFUSALS = {
    "torch": "torch==1.0.0 has no wheels with a matching Python ABI tag (e.g., `cp311`)",
    "docopt": "docopt==0.6.2 has no usable wheels",
    "numpy": "there is no version of numpy==99",
    "tiny-x": "tiny-x was not found in the package registry",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_uv_cannot_have_is_read_from_its_message(name: str) -> None:
    text = "uv ended with status 1 while locking v:\nerror: No solution found when resolving dependencies\n"
    text += (
        f"  cause: Because {REFUSALS[name]} and you require {name}==1, we can conclude that your requirements are ...\n"
    )
    assert not_offered(text, {name, "six"}) == (name, REFUSALS[name])
    assert not_offered(text, {"six"}) == ("", ""), "none of ours: a real failure"
    assert not_offered("error: Failed to fetch: `https://h/simple/six/`", {"six"}) == ("", "")
