"""The status page says everything in a narrow terminal too, and nothing that a terminal would act on."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from opsctl.cli.status_page import page
from opsctl.ops.status import TargetStatus
from opsctl.records.run import ExitRecord, RunRecord, RunSpec, RunStatus
from opsctl.records.verdict import Verdict
from tests.unit.ops.test_status import CACHE, ENV, REACHED

FACTS = {
    "hostname": "gpu7",
    "num_cores": 2,
    "disk_free_mib": 9000.0,
    "python": "3.11.7",
    "tools": {"tmux": "/t"},
    "time": 90.0,
}
SPEC = RunSpec("drafter", ("true",), gpus=(5, 6))
LIVE = RunStatus(
    RunRecord("drafter-1", SPEC, 30.0, "s", "m"), "running", Verdict("healthy", step=7, num_steps=9, loss=2.5)
)
ENDED = replace(
    LIVE, state="over", verdict=Verdict("crashed", "cuda_oom"), exit=ExitRecord("x", (), Verdict("crashed"), 0)
)
FULL = replace(REACHED, facts=FACTS, runs=(LIVE, ENDED))


def _shown(found: TargetStatus, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(page(found, ["`opsctl watch` follows it"]))
    return out.getvalue()


def test_a_full_target() -> None:
    text = _shown(replace(FULL, caches=replace(FULL.caches, live=(CACHE,))))
    for words in (
        "gpu7: 2 cores, 8.79 GiB free, Python 3.11.7, answers in 0.2 s",
        "cpu abc",
        "verified just now: 12 files",
        "warm k, 9 files, 3 MiB, not saved",
        "drafter warmed",
        "2, 1 live",
        "step 7/9  loss 2.5000",
        "1m 00s",
        "GPU 5,6",
        "crashed cuda oom",
        "opsctl watch",
    ):
        assert words in text, text


@pytest.mark.parametrize("width", [30, 80, 200])
def test_it_fits(width: int) -> None:
    assert max(map(len, _shown(FULL, width).splitlines())) <= width


def test_names_from_the_target_cannot_steer_the_terminal() -> None:
    evil = replace(FULL, label="\x1b[2Jhere", problem="\x1b]0;owned\x07 \x9b2J", hint="\u202ereversed")
    assert not set("\x1b\x07\x9b\u202e") & set(_shown(evil))
    run = replace(LIVE, run=replace(LIVE.run, run_id="\x1b[2Jrun"), verdict=Verdict("crashed", "\x9bcause"))
    env = replace(ENV, record=replace(ENV.record, name="\x1bname", packages={"torch": "\x1b[2J2"}))
    assert not set("\x1b\x07\x9b") & set(_shown(replace(FULL, runs=(run,), envs=(env,))))
