"""Every example in a docstring holds."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _modules(package: str) -> list[str]:
    """The modules that hold examples, by their dotted names."""
    found = (path for path in sorted((ROOT / package).rglob("*.py")) if ">>> " in path.read_text())
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in found]


@pytest.mark.parametrize(
    "name", [*_modules("opsctl"), *(pytest.param(name, marks=pytest.mark.torch) for name in _modules("trainer"))]
)
def test_examples_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
