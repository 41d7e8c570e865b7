"""Strict, typed configuration: a mapping becomes nested frozen dataclasses, or a ConfigError that names the key.

It knows no recipe: each part of the trainer owns its dataclass, and `trainer.recipe` puts them together.
"""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from trainer.errors import ConfigError

T = TypeVar("T")


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises ConfigError where it cannot be read or is no mapping."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, not {type(raw).__name__}")
    return raw


def apply_overrides(raw: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return `raw` with each `a.b=value` laid over it; the value is read as YAML."""
    result: dict[str, Any] = _deep_copy(raw)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise ConfigError(f"override {override!r} must have the form key=value, for example optim.lr=1e-3")
        *parents, last = path.split(".")
        node = result
        for name in parents:
            child = node.get(name)
            node[name] = child if isinstance(child, dict) else {}
            node = node[name]
        try:
            node[last] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"override {path}: {text!r} is not valid YAML") from error
    return result


def _deep_copy(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in raw.items()}


def build(cls: type[T], raw: Any, *, path: str = "") -> T:
    """Return a `cls` (a dataclass) made from a mapping; raises ConfigError naming the path of what is wrong."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path or 'the recipe'} must be a mapping of keys, not {raw!r}")
    known = _fields(cls)
    for key in raw:
        if key not in known:
            raise ConfigError(_unknown_key(str(key), known, path))
    hints = typing.get_type_hints(cls)
    values = {key: _convert(hints[key], value, _join(path, key)) for key, value in raw.items()}
    for key, spec in known.items():
        if key not in values and spec.default is MISSING and spec.default_factory is MISSING:
            values[key] = _convert_missing(hints[key], _join(path, key))
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error


def _fields(cls: type[Any]) -> dict[str, Field[Any]]:
    return {spec.name: spec for spec in fields(cls)}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _unknown_key(key: str, known: Iterable[str], path: str) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {_join(path, near[0])}?" if near else f"known keys: {', '.join(sorted(known))}"
    return f"{_join(path, key)}: unknown key; {hint}"


def _convert_missing(hint: Any, path: str) -> Any:
    """Return a section left out of the recipe, built from its defaults; raises ConfigError for a missing value."""
    if is_dataclass(hint):
        return build(typing.cast(type[Any], hint), {}, path=path)
    raise ConfigError(f"{path}: required, and missing")


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, path)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{path}: {value!r} is not one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}: must be a list, not {value!r}")
        return tuple(_convert(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if is_dataclass(hint):
        return build(typing.cast(type[Any], hint), value, path=path)
    return _convert_scalar(hint, value, path)


def _convert_union(arguments: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    (inner,) = [argument for argument in arguments if argument is not type(None)]
    return _convert(inner, value, path)


def _convert_scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is Path and isinstance(value, str) and value:
        return Path(os.path.expandvars(value)).expanduser()
    if hint is float and not isinstance(value, bool) and isinstance(value, int | float | str):
        with suppress(ValueError):  # a text that is no number is refused below, with the path, like any other value
            return float(value)  # a string too: YAML 1.1 reads 6e-4 as one
    elif isinstance(value, bool) == (hint is bool) and isinstance(value, hint):
        return value
    raise ConfigError(f"{path}: must be {_NAMES.get(hint, hint.__name__)}, not {value!r}")


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def to_plain(value: Any) -> Any:
    """Return dataclasses, tuples and paths as mappings, lists and strings, as `build` reads them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {spec.name: to_plain(getattr(value, spec.name)) for spec in fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def to_yaml(value: Any) -> str:
    """Return the YAML text of a configuration; `read_mapping` and `build` give it back equal."""
    return yaml.safe_dump(to_plain(value), sort_keys=False, default_flow_style=None, width=100)
