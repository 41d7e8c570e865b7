"""What every call takes: the protocol's number, how a command ended, and the JSON form of records.

Shipped inside the agent: standard library only, Python 3.10 and newer. Apart from `records`, whose many classes take
longer to make than a short call lasts.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

SCHEMA = 1
PROTOCOL = 1

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """How a command ended: `kind` is exited, killed, link_lost, timed_out or container_gone."""

    kind: str
    code: int | None = None
    signal: int | None = None


def to_json(record: Any) -> Any:
    """The plain JSON value of a record, a mapping, a sequence or a scalar."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {name.name: to_json(getattr(record, name.name)) for name in dataclasses.fields(record)}
    if isinstance(record, dict):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(value) for value in record]
    return record


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        return tuple(_decode(args[0], item) for item in value)
    if origin is dict:
        return {key: _decode(args[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value)
    return value


def from_json(cls: type[T], data: dict[str, Any]) -> T:
    """The record of class `cls` in `data`; keys that this version does not know are left out.

    >>> from_json(Outcome, {"kind": "exited", "code": 0, "later": True}).code
    0
    """
    hints = _hints(typing.cast("Any", cls))  # a class is hashable; mypy does not see it
    return cls(**{key: _decode(hints[key], value) for key, value in data.items() if key in hints})
