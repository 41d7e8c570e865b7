"""`env diff`: two environments or locks beside each other: versions, hashes, files. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from opsctl.config_file import read
from opsctl.errors import ConfigError
from opsctl.formats.lockfile import Pin, by_name, parse_lock, parse_options
from opsctl.ops.env import contents
from opsctl.ops.sets import pinned_set
from opsctl.ops.workspace import Workspace, build_target
from opsctl.records.env import EnvContents


@dataclass(frozen=True)
class Side:
    """One of the two things compared; what it does not know of itself is empty."""

    label: str
    python: str = ""
    platform: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)  # several versions of one name joined by ", "
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of the files that may be installed
    optional: frozenset[str] = frozenset()  # whose marker may leave them out
    files: Mapping[str, Mapping[str, str]] | None = None  # distribution -> file -> sha256; None for a lock


@dataclass(frozen=True)
class FileChange:
    """One file that differs between two environments."""

    distribution: str  # "" where no distribution owns it
    kind: str  # added, removed or changed
    path: str


@dataclass(frozen=True)
class EnvDiff:
    """What became of A in B; versions as "old -> new"."""

    a: str
    b: str
    facts: dict[str, str] = field(default_factory=dict)  # python, platform
    added: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    rehashed: tuple[str, ...] = ()  # the same version, other files
    files: tuple[FileChange, ...] = ()  # of distributions whose version is the same, and of none

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not (self.facts or self.added or self.removed or self.changed or self.rehashed or self.files)


def diff(workspace: Workspace, a: str, b: str) -> EnvDiff:
    """Compare two of: a lock file, the name of a set, an environment's id, TARGET: or TARGET:ID.

    Raises ConfigError or UsageError naming the one that leads nowhere.
    """
    return compare(_side(workspace, a), _side(workspace, b))


def _side(workspace: Workspace, text: str) -> Side:
    target, colon, env_id = text.partition(":")
    if colon and not Path(text).exists():
        name, settings = workspace.config.target(target)
        there = replace(workspace, target=build_target(name, settings))
        return of_env(contents(there, _id(env_id), has_files=True), prefix=f"{name}:")
    path = Path(text)
    if not path.is_file() and (known := pinned_set(workspace, text).lock if "/" not in text else path).is_file():
        path = known
    if path.is_file():
        return of_lock(read(path), label=str(path))
    if path.suffix == ".lock" or "/" in text:
        raise ConfigError(f"{text} is not there", hint="`opsctl env lock NAME` writes a lock")
    return of_env(contents(workspace, _id(text), has_files=True))


def _id(text: str) -> str:
    return "" if text == "active" else text


def of_lock(text: str, *, label: str) -> Side:
    """A lock as a side; raises ConfigError for a row that is none."""
    pins = parse_lock(text, label=label)
    versions = {name: version for name, (version, _) in by_name(pins).items()}
    python = parse_options(text, label=label).python
    optional = frozenset(pin.name for pin in pins if pin.marker)
    return Side(label, python=python, versions=versions, hashes=_hashes(pins), optional=optional)


def of_env(found: EnvContents, *, prefix: str = "") -> Side:
    """An environment as a side; hashes are known of what its lock names and still stands in that version."""
    label = prefix + found.env_id
    pins = parse_lock(found.lock, label=label) if found.lock else ()
    standing = tuple(pin for pin in pins if found.packages.get(pin.name) == pin.version)
    return Side(
        label,
        python=found.python,
        platform=found.platform,
        versions=found.packages,
        hashes=_hashes(standing),
        files=found.files,
    )


def _hashes(pins: tuple[Pin, ...]) -> dict[str, frozenset[str]]:
    return {name: hashes for name, (_, hashes) in by_name(pins).items()}


# --- pure ------------------------------------------------------------------------------------------


def compare(a: Side, b: Side) -> EnvDiff:
    """What differs, as far as both sides know."""
    both = sorted(a.versions.keys() & b.versions.keys())
    same = [name for name in both if _is_one_of(a.versions[name], b.versions[name])]
    # a lock may name what its marker leaves out of an environment
    added = {name: version for name, version in _only(b, a) if not (name in b.optional and a.files is not None)}
    removed = {name: version for name, version in _only(a, b) if not (name in a.optional and b.files is not None)}
    return EnvDiff(
        a.label,
        b.label,
        facts=_facts(a, b),
        added=added,
        removed=removed,
        changed={name: f"{a.versions[name]} -> {b.versions[name]}" for name in both if name not in same},
        rehashed=tuple(name for name in same if _is_rehashed(name, a, b)),
        files=tuple(_file_changes(a, b, {*same, ""})),
    )


def _only(one: Side, other: Side) -> list[tuple[str, str]]:
    return [(name, one.versions[name]) for name in sorted(one.versions.keys() - other.versions.keys())]


def _is_one_of(a: str, b: str) -> bool:
    """Whether two versions agree; a lock may name one for each platform.

    >>> _is_one_of("1.0, 2.0", "2.0"), _is_one_of("1.0", "2.0")
    (True, False)
    """
    left, right = set(a.split(", ")), set(b.split(", "))
    return left == right or (min(len(left), len(right)) == 1 and bool(left & right))


def _is_rehashed(name: str, a: Side, b: Side) -> bool:
    left, right = a.hashes.get(name), b.hashes.get(name)
    if left is None or right is None:
        return False
    return left != right if a.versions[name] == b.versions[name] else not left & right


def _facts(a: Side, b: Side) -> dict[str, str]:
    found = {}
    if a.python and b.python and not (_begins(a.python, b.python) or _begins(b.python, a.python)):
        found["python"] = f"{a.python} -> {b.python}"
    if a.platform and b.platform and a.platform != b.platform:
        found["platform"] = f"{a.platform} -> {b.platform}"
    return found


def _begins(version: str, wanted: str) -> bool:
    return f"{version}.".startswith(f"{wanted}.")


def _file_changes(a: Side, b: Side, names: set[str]) -> Iterator[FileChange]:
    """Files of these distributions; where a version differs, that says enough."""
    if a.files is None or b.files is None:
        return
    for name in sorted(names):
        left, right = a.files.get(name, {}), b.files.get(name, {})
        for path in sorted(left.keys() | right.keys()):
            if path not in right:
                yield FileChange(name, "removed", path)
            elif path not in left:
                yield FileChange(name, "added", path)
            elif left[path] != right[path]:
                yield FileChange(name, "changed", path)
