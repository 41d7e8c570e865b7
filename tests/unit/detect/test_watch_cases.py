"""Every watch case gets its verdict and cause, fed whole, row by row and cut at random bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.ops.diagnose import case_in, diagnose
from opsctl.records.verdict import VERDICTS, Verdict

DATA = Path(__file__).parents[2] / "data"
FOLDERS = sorted(path.parent for root in ("watch", "watch_own") for path in (DATA / root).glob("*/case.yaml"))
ALARMS = {"degraded", "eager_fallback", "hung", "crashed"}


def _case(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8")))


def _pairs(case: dict[str, Any]) -> set[tuple[str, str]]:
    expected = case["expected"]
    return {(pair["verdict"], pair["cause"]) for pair in (expected, *expected["accept"])}


def _is_right(verdict: Verdict, case: dict[str, Any]) -> bool:
    pairs = _pairs(case)
    quiet = verdict.verdict in ("healthy", "finished") and verdict.cause == "ok"
    return (verdict.verdict, verdict.cause) in pairs or (quiet and verdict.verdict in {pair[0] for pair in pairs})


def _rows(data: bytes) -> Iterator[bytes]:
    return iter(data.splitlines(keepends=True))


def _random_pieces(data: bytes, seed: int) -> Iterator[bytes]:
    source = random.Random(seed)
    at = 0
    while at < len(data):
        size = source.choice((1, 2, 3, 7, 40, 300))
        yield data[at : at + size]
        at += size


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_the_verdict_is_right_however_the_log_is_cut(folder: Path) -> None:
    case, material = _case(folder), case_in(folder)
    verdict = diagnose(material).verdict
    assert _is_right(verdict, case), (verdict, case["expected"])
    assert verdict.verdict not in case["expected"]["forbid"]["verdicts"]
    assert verdict.cause not in case["expected"]["forbid"]["causes"]
    if verdict.verdict in ALARMS:
        assert verdict.evidence
        assert verdict.advice
    assert diagnose(material, cut=_rows).verdict == verdict
    assert diagnose(material, cut=lambda data: _random_pieces(data, len(data))).verdict == verdict


def test_the_cases_cover_every_cause_of_the_table() -> None:
    table = (DATA / "watch" / "FORMAT.md").read_text(encoding="utf-8").split("## Causes")[1].split("## Scoring")[0]
    causes = {row.split("`")[1] for row in table.splitlines() if row.startswith("| `")}
    met = {pair[1] for folder in FOLDERS for pair in (next(iter(_expected(folder))),)}
    assert not causes - met - {"cause_unknown"}


def _expected(folder: Path) -> Iterator[tuple[str, str]]:
    expected = _case(folder)["expected"]
    yield expected["verdict"], expected["cause"]


def test_expected_verdicts_are_words_of_the_vocabulary() -> None:
    assert {verdict for folder in FOLDERS for verdict, _ in _expected(folder)} <= set(VERDICTS)
