"""The doctor's decisions: every case of tests/data/doctor, what a lock wants, and sshd's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.formats.drivers import cuda_of
from opsctl.formats.lockfile import parse_lock
from opsctl.ops.doctor import CONTAINER_QUESTIONS, QUESTIONS, judge_sshd
from opsctl.ops.doctor_checks import Need
from opsctl.records.call import from_json
from opsctl.records.doctor import Check, TargetFacts

DATA: dict[str, Any] = yaml.safe_load(Path("tests/data/doctor/cases.yaml").read_text())
BY_NAME = {question.__name__: question for question in QUESTIONS}


def _answer(case: dict[str, Any]) -> Check:
    facts = from_json(TargetFacts, {**DATA["healthy"], **case.get("facts", {})})
    need = {**case.get("need", {}), "gpus": tuple(case.get("need", {}).get("gpus", ()))}
    return BY_NAME[case["ask"]](facts, Need(**need))


@pytest.mark.parametrize("case", DATA["cases"], ids=[f"{n}-{one['ask']}" for n, one in enumerate(DATA["cases"])])
def test_the_facts_mean_what_the_case_says(case: dict[str, Any]) -> None:
    check = _answer(case)
    assert check.ok is case["ok"], check
    assert case.get("found", "") in check.found
    assert case.get("todo", "") in check.todo
    assert bool(check.todo) or check.ok is not False, "an answer that says no has a way out"


def test_every_question_has_a_case_for_each_answer() -> None:
    answered = {(case["ask"], case["ok"]) for case in DATA["cases"]}
    assert {(name, answer) for name in BY_NAME for answer in (True, False)} - answered == set()
    assert set(CONTAINER_QUESTIONS) <= set(QUESTIONS)


@pytest.mark.parametrize(("name", "cuda"), [("cpu", ""), ("cu130", "13.0")])
def test_the_project_s_own_sets_name_their_cuda(name: str, cuda: str) -> None:
    assert cuda_of(parse_lock(Path(f"env/{name}.lock").read_text(), label=name)) == cuda


def test_a_lock_from_pytorchs_index_names_its_cuda() -> None:
    row = f"torch==2.13.0+cu128 --hash=sha256:{'0' * 64}\n"
    assert cuda_of(parse_lock(row, label="x")) == "12.8"


@pytest.mark.parametrize(
    ("said", "ok"), [("maxsessions 10\nmaxstartups 10:30:100\n", True), ("maxsessions 2\n", False), ("", None)]
)
def test_sshds_limits_are_judged(said: str, ok: bool | None) -> None:
    assert judge_sshd(said).ok is ok
