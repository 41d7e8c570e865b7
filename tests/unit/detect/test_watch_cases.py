"""Every watch case gets its verdict and cause, fed whole, row by row and cut at random bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.ops.diagnose import case_in, diagnose
from opsctl.records.verdict import VERDICTS
from tests.support.cases import ALARMS, DATA, check, expected_of, folders

FOLDERS = folders("watch", "watch_own")


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
    material = case_in(folder)
    verdict = diagnose(material).verdict
    check(verdict.verdict, verdict.cause, expected_of(folder))
    if verdict.verdict in ALARMS:
        assert verdict.evidence
        assert verdict.advice
    assert diagnose(material, cut=_rows).verdict == verdict
    assert diagnose(material, cut=lambda data: _random_pieces(data, len(data))).verdict == verdict


def test_the_cases_cover_every_cause_of_the_table() -> None:
    table = (DATA / "watch" / "FORMAT.md").read_text(encoding="utf-8").split("## Causes")[1].split("## Scoring")[0]
    causes = {row.split("`")[1] for row in table.splitlines() if row.startswith("| `")}
    met = {expected_of(folder)["cause"] for folder in FOLDERS}
    assert not causes - met - {"cause_unknown"}


def test_expected_verdicts_are_words_of_the_vocabulary() -> None:
    assert {expected_of(folder)["verdict"] for folder in FOLDERS} <= set(VERDICTS)
