"""Reads opsctl.yaml; a refusal names file, line and key. The models are in `config`."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from opsctl.config import FILE_NAME, Config, nearest
from opsctl.errors import ConfigError

EXPLAINED = "`opsctl init --local` in an empty folder writes a file that explains every key"
_PLAIN = {
    "string_type": "must be text; quotes make text of a number",
    "dict_type": "must be keys with values",
    "model_type": "must be keys with values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "too_short": "must not be empty",
}


def models_in(hint: Any) -> Iterator[type[BaseModel]]:
    """The models that a field's annotation names."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for argument in typing.get_args(hint):
        yield from models_in(argument)


def _known_keys(location: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at this place knows."""
    model: type[BaseModel] = Config
    for part in location:
        field = model.model_fields.get(str(part))
        models = list(models_in(field.annotation)) if field else []
        if models:
            model = models[0]
    return list(model.model_fields)


def _line_of(node: yaml.Node | None, location: tuple[str | int, ...]) -> int | None:
    """The line, counted from 1, of the deepest part of `location` that the file holds."""
    line = None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _explain(error: Any, path: Path, root: yaml.Node | None) -> tuple[str, str]:
    location = tuple(part for part in error["loc"] if part != "[key]")  # pydantic's mark of a bad name
    line = _line_of(root, location)
    place = f"{path}:{line}" if line else str(path)
    key = ".".join(map(str, location)) or "the file"
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key {key!r}", nearest(str(location[-1]), _known_keys(location[:-1]))
    if error["type"] == "missing":
        return f"{place}: {key!r} is missing", EXPLAINED
    return f"{place}: {key}: {_plain(error)}", EXPLAINED


def _plain(error: Any) -> str:
    """What is wrong, without the words of the library and of Python.

    >>> _plain({"type": "tuple_type", "msg": "Input should be a valid tuple", "input": "python -m x"})
    'must be a list of words, for example [python, -m, x]'
    """
    if error["type"] == "tuple_type":
        is_text = isinstance(error["input"], str) and bool(error["input"].strip())
        words = error["input"].split() if is_text else [error["input"]]
        example = yaml.safe_dump(words, default_flow_style=True, width=sys.maxsize).strip()
        return f"must be a list of words, for example {example}" if is_text else f"must be a list, such as {example}"
    message = str(_PLAIN.get(error["type"], error["msg"]))
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _refuse(error: ValidationError, path: Path, root: yaml.Node | None) -> ConfigError:
    # unknown keys first: a key that is missing is often one of them, mistyped
    found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    explained = [_explain(one, path, root) for one in found]
    return ConfigError("\n".join(message for message, _ in explained), hint=explained[0][1])


def _refuse_twice(node: yaml.Node | None, path: Path) -> None:
    """Raise ConfigError for a key that stands twice in one section: YAML would take the last without a word."""
    waiting, seen = [node], set()
    while waiting:
        here = waiting.pop()
        if id(here) in seen:  # an alias
            continue
        seen.add(id(here))
        if isinstance(here, yaml.SequenceNode):
            waiting += here.value
        elif isinstance(here, yaml.MappingNode):
            waiting += [value for _, value in here.value]
            _refuse_twice_in([key for key, _ in here.value], path)


def _refuse_twice_in(keys: list[yaml.Node], path: Path) -> None:
    lines: dict[str, int] = {}
    for key in keys:
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines:
            raise ConfigError(
                f"{path}:{line}: {name!r} stands in line {lines[name]} already", hint="take one of the two out"
            )
        lines[name] = line


def parse(text: str, path: Path) -> Config:
    """The configuration in `text`; raises ConfigError with `path`, line and key."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}", hint="check indentation, quotes and colons") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the file holds no settings", hint="`opsctl init --local` writes a complete one")
    _refuse_twice(root, path)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise _refuse(error, path, root) from None


def find(start: Path) -> Path:
    """The nearest opsctl.yaml in `start` or a folder above it."""
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    raise ConfigError(
        f"no {FILE_NAME} in {start} or above it",
        hint="`opsctl init --local` writes one for this machine; `--config FILE` names another",
    )


def load(path: Path) -> Config:
    """The configuration in the file at `path`."""
    return parse(read(path, hint="check the path given by --config"), path)


def read(path: Path, *, hint: str = "check its owner and mode") -> str:
    """The text of a file that configures opsctl; raises ConfigError, with `hint` where it cannot be read at all."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte {error.start + 1} of the file, 0x{data[error.start]:02x}, is not UTF-8",
            hint="save the file as UTF-8",
        ) from None
