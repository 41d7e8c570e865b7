"""`opsctl train preflight` through the installed command: what the job says is what it exits with."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.caches import Caches

pytestmark = pytest.mark.tmux

SAY = """
import json, pathlib, sys
pathlib.Path("result.json").write_text(sys.argv[1])
sys.exit(int(sys.argv[2]))
"""
ROW = {"name": "processes, one a replica", "chosen": True, "calls": 9, "exceptions": {}, "spurious_recompiles": 2}


def job(report: dict[str, Any], status: int) -> dict[str, Any]:
    return {"command": ["true"], "preflight": [sys.executable, "-c", SAY, json.dumps(report), str(status)]}


def test_a_safe_topology_exits_0_and_an_unsafe_one_1(caches: Caches) -> None:
    caches.configure(small=job({"safe": True, "problems": [], "topologies": [ROW]}, 0))
    safe = caches.opsctl("train", "preflight").ok()
    assert "* processes, one a replica: 9 calls, 2 spurious recompiles, no exceptions" in safe.out
    assert "small: safe after" in safe.out
    caches.configure(small=job({"safe": False, "problems": ["2 spurious recompiles"]}, 1))
    unsafe = caches.opsctl("train", "preflight", "small", "--json")
    found = unsafe.json()
    assert (unsafe.code, found["is_safe"], found["problems"]) == (1, False, ["2 spurious recompiles"])
    assert found["run_id"].startswith("preflight-small")
    assert caches.opsctl("train", "list").ok().out.count(" preflight ") == 2  # runs of that kind


def test_more_words_reach_the_command(caches: Caches) -> None:
    report = json.dumps({"safe": True})
    say = [sys.executable, "-c", SAY, report]
    caches.configure(small={"command": ["true"], "preflight": say})
    assert caches.opsctl("train", "preflight", "small", "--", "0").ok()


def test_a_preflight_that_says_nothing_or_is_not_there_is_no_answer(caches: Caches) -> None:
    for leaves in ("exit 1", "echo '{half' > result.json; exit 1"):
        caches.configure(small={"command": ["true"], "preflight": ["sh", "-c", leaves]})
        silent = caches.opsctl("train", "preflight")
        assert (silent.code, "left no result.json that says `safe`" in silent.err) == (5, True)
    caches.configure(small={"command": ["true"], "preflight": ["sh", "-c", "exit 2"]})
    wrong = caches.opsctl("train", "preflight")
    assert (wrong.code, "the preflight ended with status 2" in wrong.err) == (5, True)
    caches.configure(small={"command": ["true"]})
    none = caches.opsctl("train", "preflight", "small")
    assert (none.code, "has no `preflight` command" in none.err) == (3, True)
    caches.configure(small={"command": ["true"], "preflight": ["no-such-program"]})
    missing = caches.opsctl("train", "preflight")
    assert (missing.code, "no program 'no-such-program'" in missing.err) == (6, True)
