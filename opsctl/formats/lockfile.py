"""Pinned sets as text: NAME.in and its options, NAME.lock and its pins. Pure; shipped inside the agent.

A lock holds `name==version` rows with hashes and nothing else: where files come from is the
configuration's or the target's affair, so that a lock means the same everywhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.errors import ConfigError

_OPTION = re.compile(r"^#\s*opsctl:\s*(?P<key>[a-z0-9-]+)\s*=\s*(?P<value>.*?)\s*$")
_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*(?P<version>[^\s;*]+)\s*(?:;\s*(?P<marker>.*))?$"
)
_HASH = re.compile(r"\s--hash=(?P<hash>[a-z0-9]+:[0-9a-f]+)")
_REQUIREMENT_NAME = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
_COMMENT = re.compile(r"(^|\s)#.*$")
_RELOCK = "`opsctl env lock` writes it; do not edit it by hand"


@dataclass(frozen=True)
class SetOptions:
    """What a set says about itself in `# opsctl: KEY = VALUE` comments."""

    python: str = ""  # "3.11"; "" leaves it to the target
    platform: str = ""  # as `uv --python-platform` names it
    torch_backend: str = ""  # cpu, cu130, ...; "" takes torch from the ordinary index
    direct: tuple[str, ...] = ()  # the distributions whose import proves an environment; () = all that the set names
    is_complete: bool = False  # its rows overrule what distributions ask of each other
    without: tuple[str, ...] = ()  # distributions that are left out though others ask for them
    set_sha256: str = ""  # of the NAME.in that a lock was made from


@dataclass(frozen=True)
class Pin:
    """One row of a lock."""

    name: str  # normalised
    version: str
    hashes: tuple[str, ...]
    line: int
    marker: str = ""


@dataclass(frozen=True)
class LockChanges:
    """How one lock differs from another; versions as "old -> new"."""

    added: dict[str, str]
    removed: dict[str, str]
    changed: dict[str, str]
    rehashed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.rehashed)


def normalised(name: str) -> str:
    """The one spelling of a distribution's name.

    >>> normalised("Foo.Bar_baz")
    'foo-bar-baz'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_pin(file_name: str) -> tuple[str, str]:
    """The distribution, normalised, and the version that a wheel's file name tells; "" for what it does not.

    >>> wheel_pin("Foo_bar-1.0+cpu-py3-none-any.whl"), wheel_pin("odd.whl")
    (('foo-bar', '1.0+cpu'), ('odd-whl', ''))
    """
    name, version = (*file_name.split("-"), "")[:2]
    return normalised(name), version


def parse_options(text: str, *, label: str) -> SetOptions:
    """The `# opsctl:` comments of a set or a lock; raises ConfigError naming `label` and line."""
    known = {"python", "platform", "torch-backend", "direct", "complete", "without", "set-sha256"}
    found: dict[str, str] = {}
    for number, row in enumerate(text.splitlines(), start=1):
        match = _OPTION.match(row)
        if match is None:
            continue
        if match["key"] not in known:
            raise ConfigError(
                f"{label}:{number}: unknown option {match['key']!r}", hint=f"known: {', '.join(sorted(known))}"
            )
        if match["key"] == "complete" and match["value"] not in ("yes", "no"):
            raise ConfigError(f"{label}:{number}: complete is {match['value']!r}", hint="write yes or no")
        found[match["key"]] = match["value"]
    return SetOptions(
        python=found.get("python", ""),
        platform=found.get("platform", ""),
        torch_backend=found.get("torch-backend", ""),
        direct=_names(found.get("direct", "")),
        is_complete=found.get("complete") == "yes",
        without=_names(found.get("without", "")),
        set_sha256=found.get("set-sha256", ""),
    )


def _names(value: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"[,\s]+", value)))


def requirement_names(text: str) -> tuple[str, ...]:
    """The distributions that a NAME.in asks for by name, in its order.

    >>> requirement_names("torch==2.13.0  # pinned\\n-c other.txt\\nPyYAML>=6\\n")
    ('torch', 'pyyaml')
    """
    rows = (_COMMENT.sub("", row).strip() for row in text.splitlines())
    matches = (_REQUIREMENT_NAME.match(row) for row in rows)
    return tuple(dict.fromkeys(normalised(match["name"]) for match in matches if match))


def _logical_rows(text: str) -> Iterator[tuple[int, str]]:
    """Rows without comments, continuation lines joined, each with the number of its first line."""
    start, joined = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        row = _COMMENT.sub("", raw).rstrip()
        start = start or number
        joined += row.removesuffix("\\") + " "
        if not row.endswith("\\"):
            if joined.strip():
                yield start, joined.strip()
            start, joined = 0, ""
    if joined.strip():
        yield start, joined.strip()


def _parse_pin(row: str, place: str, line: int) -> Pin:
    if row.startswith("-"):
        raise ConfigError(f"{place}: an option does not belong in a lock: {row.split()[0]}", hint=_RELOCK)
    head = _HASH.sub("", row).strip()
    match = _PIN.match(head)
    if match is None:
        raise ConfigError(f"{place}: not pinned to one version: {head!r}", hint=_RELOCK)
    hashes = tuple(found["hash"] for found in _HASH.finditer(row))
    if not hashes:
        raise ConfigError(f"{place}: no hash for {match['name']}=={match['version']}", hint=_RELOCK)
    return Pin(normalised(match["name"]), match["version"], hashes, line, (match["marker"] or "").strip())


def parse_lock(text: str, *, label: str) -> tuple[Pin, ...]:
    """The pins of a lock; raises ConfigError naming `label` and line for any other row."""
    pins: dict[tuple[str, str], Pin] = {}
    for line, row in _logical_rows(text):
        pin = _parse_pin(row, f"{label}:{line}", line)
        if (pin.name, pin.marker) in pins:
            first = pins[pin.name, pin.marker].line
            raise ConfigError(f"{label}:{line}: {pin.name} is pinned twice, first in line {first}", hint=_RELOCK)
        pins[pin.name, pin.marker] = pin
    if not pins:
        raise ConfigError(f"{label}: the lock is empty", hint=_RELOCK)
    return tuple(pins.values())


def exact_requirements(pins: tuple[Pin, ...]) -> str:
    """The pins as an installer must read them: `===`, since `==2.13.0` also takes a `2.13.0+cpu` it comes across.

    >>> exact_requirements((Pin("torch", "2.13.0", ("sha256:ab",), 1),))
    'torch===2.13.0 --hash=sha256:ab\\n'
    """
    rows = (
        " ".join([f"{pin.name}==={pin.version}", *([f"; {pin.marker}"] if pin.marker else [])])
        + "".join(f" --hash={value}" for value in pin.hashes)
        for pin in pins
    )
    return "".join(f"{row}\n" for row in rows)


def fingerprint(pins: tuple[Pin, ...], *, python: str, platform: str) -> str:
    """The name of what these pins give on this Python and platform: 64 hex digits.

    Comments, layout and the order of rows and hashes do not count.
    """
    rows = sorted(f"{pin.name}=={pin.version};{pin.marker} {' '.join(sorted(pin.hashes))}" for pin in pins)
    return hashlib.sha256("\n".join([python, platform, *rows]).encode()).hexdigest()


def by_name(pins: tuple[Pin, ...]) -> dict[str, tuple[str, frozenset[str]]]:
    """Each distribution's version and hashes; a lock may name several versions, joined by ", "."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for pin in pins:
        version, hashes = found.get(pin.name, ("", frozenset()))
        joined = f"{version}, {pin.version}" if version else pin.version
        found[pin.name] = (joined, hashes | frozenset(pin.hashes))
    return found


def changes(old: tuple[Pin, ...], new: tuple[Pin, ...]) -> LockChanges:
    """What became of each distribution between two locks."""
    before, after = by_name(old), by_name(new)
    both = sorted(before.keys() & after.keys())
    return LockChanges(
        added={name: after[name][0] for name in sorted(after.keys() - before.keys())},
        removed={name: before[name][0] for name in sorted(before.keys() - after.keys())},
        changed={n: f"{before[n][0]} -> {after[n][0]}" for n in both if before[n][0] != after[n][0]},
        rehashed=tuple(n for n in both if before[n][0] == after[n][0] and before[n][1] != after[n][1]),
    )
