"""Where a set is missing, the way to one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.ops.sets import PinnedSet


def _hint(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        PinnedSet("cpu", folder).lock_text()
    return caught.value.hint


def test_each_way_to_a_lock_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    assert _hint(folder).startswith("write env/cpu.in,")
    assert not folder.exists()
    folder.mkdir()
    (folder / "cpuu.in").touch()
    assert _hint(folder) == "did you mean 'cpuu'?"
    (folder / "cpu.in").touch()
    assert _hint(folder) == "`opsctl env lock cpu` writes it"
