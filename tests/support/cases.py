"""The watch cases: a folder each, with what was seen of a job and the verdict that is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data"
ALARMS = frozenset({"degraded", "eager_fallback", "hung", "crashed"})


def folders(*roots: str) -> list[Path]:
    """All cases below these folders of the tests' data."""
    return sorted(path.parent for root in roots for path in (DATA / root).glob("*/case.yaml"))


def expected_of(folder: Path) -> dict[str, Any]:
    """What the case says of the verdict."""
    return dict(yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))["expected"])


def check(verdict: str, cause: str, expected: dict[str, Any]) -> None:
    """Fail where a verdict is not one that the case allows, or one that it forbids."""
    pairs = {(one["verdict"], one["cause"]) for one in (expected, *expected["accept"])}
    is_quiet = verdict in ("healthy", "finished") and cause == "ok" and verdict in {pair[0] for pair in pairs}
    assert (verdict, cause) in pairs or is_quiet, (verdict, cause, expected)
    assert verdict not in expected["forbid"]["verdicts"]
    assert cause not in expected["forbid"]["causes"]
