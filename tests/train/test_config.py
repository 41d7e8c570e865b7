"""Strict configuration: every mistake names its key."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import pytest

from trainer.config import apply_overrides, build, read_mapping, to_plain, to_yaml
from trainer.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    lr: float = 0.1
    layers: tuple[int, ...] = (1, 2)
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError("lr must be positive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int
    optim: Inner = dataclasses.field(default_factory=Inner)
    device: Literal["cpu", "cuda"] = "cpu"
    verbose: bool = False
    name: str = "x"
    folder: Path = Path("here")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "steps: required, and missing"),
        ({"steps": 1, "optm": {}}, "optm: unknown key; did you mean optim?"),
        ({"steps": 1, "optim": {"lrr": 1}}, "optim.lrr: unknown key; did you mean optim.lr?"),
        ({"steps": 1, "optim": {"zzzz": 1}}, "optim.zzzz: unknown key; known keys: layers, limit, lr"),
        ({"steps": "ten"}, "steps: must be a whole number, not 'ten'"),
        ({"steps": True}, "steps: must be a whole number, not True"),
        ({"steps": 1.5}, "steps: must be a whole number, not 1.5"),
        ({"steps": 1, "verbose": 1}, "verbose: must be true or false, not 1"),
        ({"steps": 1, "optim": 3}, "optim must be a mapping of keys, not 3"),
        ({"steps": 1, "optim": {"lr": "fast"}}, "optim.lr: must be a number, not 'fast'"),
        ({"steps": 1, "optim": {"layers": [1, "b"]}}, "optim.layers[1]: must be a whole number, not 'b'"),
        ({"steps": 1, "optim": {"layers": 3}}, "optim.layers: must be a list, not 3"),
        ({"steps": 1, "optim": {"lr": -1}}, "optim: lr must be positive"),
        ({"steps": 1, "device": "tpu"}, "device: 'tpu' is not one of cpu, cuda"),
        ({"steps": 1, "name": 7}, "name: must be a text, not 7"),
    ],
)
def test_a_mistake_is_named_with_its_path(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        build(Outer, raw)


def test_values_are_typed_and_sections_have_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/data")
    raw = {"steps": 3, "optim": {"lr": "6e-4", "limit": 5, "layers": [4]}, "folder": "$WHERE/x"}
    made = build(Outer, raw)
    assert made == Outer(steps=3, optim=Inner(lr=6e-4, limit=5, layers=(4,)), folder=Path("/data/x"))


def test_overrides_lie_over_the_file_and_are_typed_the_same_way() -> None:
    raw = {"steps": 1, "optim": {"lr": 0.5, "limit": 1}}
    made = build(Outer, apply_overrides(raw, ["optim.lr=1e-3", "optim.limit=null", "verbose=true", "optim.layers=[7]"]))
    assert made == Outer(steps=1, optim=Inner(lr=1e-3, layers=(7,)), verbose=True)
    assert raw == {"steps": 1, "optim": {"lr": 0.5, "limit": 1}}


@pytest.mark.parametrize("override", ["steps", "=3", "a.b"])
def test_an_override_without_a_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="must have the form key=value"):
        apply_overrides({}, [override])


def test_an_override_of_an_unknown_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"optim\.lrr: unknown key"):
        build(Outer, apply_overrides({"steps": 1}, ["optim.lrr=1"]))


def test_the_resolved_configuration_reads_back_equal(tmp_path: Path) -> None:
    made = Outer(steps=3, optim=Inner(lr=6e-4, layers=(4, 5)), folder=Path("/x"))
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(made), encoding="utf-8")
    assert build(Outer, read_mapping(path)) == made
    assert to_plain(made)["optim"] == {"lr": 6e-4, "layers": [4, 5], "limit": None}


def test_files_that_are_no_recipe_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_mapping(tmp_path / "none.yaml")
    for text, message in (("a: [", "is not valid YAML"), ("- 1", "must hold a mapping")):
        path = tmp_path / "bad.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            read_mapping(path)
