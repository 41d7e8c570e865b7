"""Drift between a manifest and what lies there now. Pure: listings and hashes in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from opsctl.agent.env.manifest import VENV, Listing, Manifest, source_of
from opsctl.agent.env.wheels import Distribution
from opsctl.records.env import Drift

_START_HOOKS = frozenset({"sitecustomize", "usercustomize"})


@dataclass(frozen=True)
class Comparison:
    """Paths by what sizes, times and names alone say of them."""

    edited: tuple[str, ...]  # another size, or a link instead of a file
    suspect: tuple[str, ...]  # another time: only a hash can tell
    same: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]


def compare(manifest: Manifest, now: Listing) -> Comparison:
    """Sort the files of both sides; reads nothing."""
    sorted_paths: dict[str, list[str]] = {"edited": [], "suspect": [], "same": [], "missing": []}
    known: set[str] = set()
    for files in manifest.values():
        known.update(files)
        for path, entry in files.items():
            seen = now.files.get(path)
            if seen is None:
                sorted_paths["missing"].append(path)
            elif seen.link != entry.link or (entry.link is None and seen.size != entry.size):
                sorted_paths["edited"].append(path)
            elif entry.link is None and seen.mtime_ns != entry.mtime_ns:
                sorted_paths["suspect"].append(path)
            else:
                sorted_paths["same"].append(path)
    added = [path for path in now.files if path not in known]
    stray = [path for path in now.bytecode if source_of(path) not in known]
    # bytecode of an added source goes with that source
    added += [path for path in stray if source_of(path) not in now.files]
    return Comparison(**{kind: tuple(paths) for kind, paths in sorted_paths.items()}, added=tuple(added))


def _is_start_hook(path: str, site_packages: str) -> bool:
    """Whether Python runs this file by itself at start."""
    if not path.startswith(site_packages + "/"):
        return False
    name = path[len(site_packages) + 1 :]
    return ("/" not in name and name.endswith(".pth")) or name.split("/")[0].split(".")[0] in _START_HOOKS


def _version_of(label: str) -> tuple[str, str]:
    name, _, version = label.partition("==")
    return name, version


def _foreign(one: Distribution, manifest: Manifest, changed: set[str], gone: set[str]) -> Drift:
    versions = dict(_version_of(label) for label in manifest)
    by = f" by {one.installer}" if one.installer else ""
    counts = ", ".join(f"files {what}: {len(paths)}" for paths, what in ((changed, "changed"), (gone, "gone")) if paths)
    instead = f", in place of {versions[one.name]}" if one.name in versions else ""
    detail = f"{one.version} installed{by} after the build{instead}" + (f" ({counts})" if counts else "")
    return Drift("foreign", one.label, one.info, detail)


def findings(
    manifest: Manifest,
    comparison: Comparison,
    edited: Collection[str],
    foreign: tuple[Distribution, ...],
    site_packages: str,
) -> tuple[Drift, ...]:
    """What to report; `edited` are the paths whose content is known to differ.

    Files that a foreign distribution brought, and those of the one that it replaced, are one finding, not thousands.
    """
    owner = {path: label for label, files in manifest.items() for path in files}
    brought = {row.path for one in foreign for row in one.files}
    infos = tuple(f"{one.info}/" for one in foreign)

    def is_brought(path: str) -> bool:
        return path in brought or path.startswith(infos) or source_of(path) in brought

    replaced = {one.name: _replaced(one, owner, edited, comparison.missing) for one in foreign}
    told = {path for changed, gone in replaced.values() for path in changed | gone}
    found = [_foreign(one, manifest, *replaced[one.name]) for one in foreign]
    found += [Drift("edited", _plain(owner[path]), path) for path in edited if path not in told]
    found += [Drift("missing", _plain(owner[path]), path) for path in comparison.missing if path not in told]
    found += [
        _added(path, site_packages, _owner_of_folder(path, owner))
        for path in comparison.added
        if _is_start_hook(path, site_packages) or not is_brought(path)
    ]
    return tuple(sorted(found, key=lambda one: (one.distribution, one.kind, one.path)))


def _replaced(
    one: Distribution, owner: dict[str, str], edited: Collection[str], missing: Collection[str]
) -> tuple[set[str], set[str]]:
    """The files of an earlier version that a foreign distribution wrote over, and those that went with that version."""
    brought = {row.path for row in one.files}
    changed = {path for path in edited if path in brought and _version_of(owner[path])[0] == one.name}
    return changed, {path for path in missing if _version_of(owner[path])[0] == one.name}


def _plain(label: str) -> str:
    return "" if label == VENV else label


def _added(path: str, site_packages: str, distribution: str) -> Drift:
    if _is_start_hook(path, site_packages):
        return Drift("intruder", distribution, path, "Python runs it at every start")
    return Drift("added", distribution, path)


def _owner_of_folder(path: str, owner: dict[str, str]) -> str:
    """Whose package folder an added file lies in: that of the __init__.py beside or above it."""
    folder = path.rpartition("/")[0]
    while folder:
        label = owner.get(f"{folder}/__init__.py")
        if label is not None:
            return _plain(label)
        folder = folder.rpartition("/")[0]
    return ""


def really_edited(
    manifest: Manifest, comparison: Comparison, hashed: Callable[[tuple[str, ...]], dict[str, str]], *, full: bool
) -> tuple[str, ...]:
    """The paths whose content differs; hashes suspects, and with `full` everything else as well."""
    recorded = {path: entry for files in manifest.values() for path, entry in files.items()}
    asked = comparison.suspect + (comparison.same if full else ())
    actual = hashed(tuple(path for path in asked if recorded[path].link is None))
    differing = tuple(path for path, value in actual.items() if value != recorded[path].sha256)
    return comparison.edited + differing
