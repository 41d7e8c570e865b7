"""What is printed, beside what it says."""

from __future__ import annotations

import pytest

from opsctl import ui


@pytest.mark.parametrize("name", [0, 1])
def test_names_stay_whole_in_a_narrow_table(
    name: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    row = ["a cell whose words may be broken" for _ in range(3)]
    row[name] = "prewarm-drafter-20261129-200619-ffc3"
    ui.table(("a", "b", "c"), [row], name=name)
    assert row[name] in capsys.readouterr().out
