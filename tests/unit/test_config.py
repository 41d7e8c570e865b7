"""opsctl.yaml: the example is complete, and every refusal names its place and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from opsctl.config import Config, Section, _models_in, find, load, parse
from opsctl.errors import ConfigError
from opsctl.ops.init import example

HEAD = "default_target: a\ntargets: {a: {}}\n"
PATH = Path("opsctl.yaml")


def test_the_example_loads_and_shows_the_defaults() -> None:
    config = parse(example(), PATH)
    assert config.targets["here"].host == "local"
    assert config.env == type(config.env)()


def _missing(model: type[Section], data: object, place: str) -> list[str]:
    """The fields of `model` that `data` does not show, by key path."""
    assert isinstance(data, dict), place
    missing = [f"{place}.{name}" for name in model.model_fields if name not in data]
    for name, field in model.model_fields.items():
        inner = list(_models_in(field.annotation))
        value = data.get(name)
        if not inner or not value:
            continue
        is_mapping = "dict" in str(field.annotation)
        for key, one in value.items() if is_mapping else [(name, value)]:
            missing += _missing(inner[0], one, f"{place}.{key}")  # type: ignore[arg-type]  # all models are sections
    return missing


def test_the_example_shows_every_key() -> None:
    assert _missing(Config, yaml.safe_load(example()), "opsctl") == []


def test_the_example_beside_the_readme_is_the_shipped_one() -> None:
    assert Path("opsctl.example.yaml").read_text() == example()


@pytest.mark.parametrize(
    ("body", "line", "said", "hint"),
    [
        ("jobs: {j: {command: [x], gpu: [1]}}\n", 3, "unknown key 'jobs.j.gpu'", "did you mean 'gpus'?"),
        ("evn: {}\n", 3, "unknown key 'evn'", "did you mean 'env'?"),
        ("env:\n  keep: 0\n", 4, "env.keep", ""),
        ("jobs: {j: {}}\n", 3, "'jobs.j.command' is missing", ""),
        ("notify: {webhook: 'http://x'}\n", 3, "notify.webhook", ""),
    ],
)
def test_a_bad_key_is_named_with_its_place(body: str, line: int, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(HEAD + body, PATH)
    assert caught.value.message.startswith(f"opsctl.yaml:{line}: ")
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "default_target: b\ntargets: {a: {}}\n"])
def test_a_broken_file_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, PATH)


def test_an_unknown_name_gets_the_nearest() -> None:
    config = parse(HEAD + "jobs: {drafter: {command: [x]}}\n", PATH)
    with pytest.raises(ConfigError) as caught:
        config.job("draftr")
    assert caught.value.hint == "did you mean 'drafter'?"


def test_the_nearest_file_upwards_is_found(tmp_path: Path) -> None:
    (tmp_path / "opsctl.yaml").write_text(HEAD)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert load(find(inner)).default_target == "a"
    with pytest.raises(ConfigError):
        find(Path("/proc"))
