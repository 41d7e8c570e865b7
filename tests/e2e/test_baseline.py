"""A good run's figures, kept on the target, and later runs that are compared with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.panes import ForeignSession, foreign
from tests.support.runs import Runs, Smi
from tests.support.until import until
from tests.support.watching import Watch, job, watch

__all__ = ["foreign", "watch"]
pytestmark = pytest.mark.tmux
Opsctl = Callable[..., Ended]
# far apart, and neither so short that a busy machine makes much of it
QUICK = job("steps", "--steps", "30", "--step-s", "0.1")
SLOW = job("steps", "--steps", "100000", "--step-s", "0.7")


@pytest.fixture
def good(runs: Runs, opsctl: Opsctl, smi: Smi) -> dict[str, Any]:
    """The document about a baseline `good`, saved from a run of 0.1 s a step."""
    smi.series("0, GPU-a, H200, 97, 40000, 600")
    run = runs.start(*QUICK, name="quick")
    assert runs.ended(run)["verdict"]["verdict"] == "finished"
    document: dict[str, Any] = opsctl("watch", "quick", "--save-baseline", "good", "--json").ok().json()
    return document


def test_a_slower_run_than_the_good_one_is_degraded(
    runs: Runs, opsctl: Opsctl, watch: Callable[..., Watch], good: dict[str, Any]
) -> None:
    figures = good["figures"]
    assert 0.1 <= figures["step_s"] < 0.35
    assert figures["used_mib"] == 40000.0
    assert figures["swing_mib"] == 0.0
    one = {"command": list(SLOW), "env": False, "code": False, "baseline": "good"}
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    (runs.project / "opsctl.yaml").write_text(json.dumps({**settings, "jobs": {"slow": one}}))
    opsctl("train", "start", "slow").ok()
    verdict = watch("slow").wait_for("verdict", verdict="degraded")
    assert verdict["cause"] == "throughput_drop"
    assert "times what it should" in verdict["evidence"][0]
    refused = opsctl("watch", "slow", "--save-baseline", "worse")
    assert refused.code == 1
    assert "degraded" in refused.err


@pytest.mark.usefixtures("good")
def test_the_same_speed_is_healthy_also_in_a_foreign_session(
    runs: Runs, opsctl: Opsctl, foreign: Callable[..., ForeignSession], watch: Callable[..., Watch]
) -> None:
    run = runs.start(*job("steps", "--steps", "100000", "--step-s", "0.1"), options=("--baseline", "good"))
    until(lambda: b"step 30/" in runs.log(run))
    assert opsctl("watch", "--once", "--json").ok().json()["verdict"]["verdict"] == "healthy"
    session = foreign()
    session.type(*SLOW)
    seen = watch(*session.words(), "--baseline", "good")
    assert seen.wait_for("verdict", verdict="degraded")["cause"] == "throughput_drop"


def test_what_cannot_be_a_baseline_is_refused(runs: Runs, opsctl: Opsctl, good: dict[str, Any]) -> None:
    short = runs.start(*job("steps", "--steps", "5"), name="short")
    runs.ended(short)
    for words, code, part in (
        (("watch", "short", "--save-baseline", "x"), 1, "has shown"),
        (("watch", "quick", "--save-baseline", "../x"), 2, "no name for a baseline"),
        (("watch", "--save-baseline", "x", "--session", "s"), 2, "leave --session out"),
        (("watch", "quick", "--baseline", "good"), 2, "--session"),
        (("train", "start", "--baseline", "godo", "--", "true"), 1, "did you mean 'good'?"),
    ):
        ended = opsctl(*words)
        assert ended.code == code, ended
        assert part in ended.err
    assert good["run_id"].startswith("quick")
