"""`env adopt`: saves an environment made by hand, and writes the set and lock that would rebuild it. Never prints."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from opsctl.config_file import read
from opsctl.config_texts import NAME
from opsctl.errors import CommandFailed, UsageError
from opsctl.formats.listing import some
from opsctl.formats.lockfile import by_name, parse_lock
from opsctl.formats.output import write_output
from opsctl.ops.env_lock import lock
from opsctl.ops.jobs import OnProgress, follow, unheard
from opsctl.ops.sets import PinnedSet, pinned_set
from opsctl.ops.starting import starting
from opsctl.ops.workspace import Workspace
from opsctl.records.call import from_json
from opsctl.records.env import Adopted, AdoptedDistribution, ArchiveEntry, RestoredArchive
from opsctl.records.run import RunRecord

# glibc versions that uv has platforms for; the newest that is not newer than the target's is taken
_MANYLINUX = (17, 28, *range(31, 41))
_MACHINES = ("x86_64", "aarch64")
_BACKEND = re.compile(r"\+(?P<backend>cpu|cu\d+|rocm[\d.]+|xpu)$")
# how uv says that a version is not to be had, all else being equal: every row is pinned, and overrules
_NOT_OFFERED = re.compile(
    r"Because (?P<reason>(?:there is no version of )?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)[^\n]*?) and you require"
)
_INSTALLERS = frozenset({"pip", "setuptools", "wheel", "uv"})


@dataclass(frozen=True)
class Unpinned:
    """A distribution that no lock can bring back, and why; the archive holds it."""

    name: str
    version: str
    why: str
    outside: str = ""  # a file or folder on the target that it came from, and that the archive does not hold


@dataclass(frozen=True)
class AdoptedSet:
    """What became of an environment made by hand: its archive on the target, a set and a lock here."""

    adopted: Adopted
    wanted: str  # path of NAME.in
    lock: str
    num_pinned: int
    unpinned: tuple[Unpinned, ...] = ()
    changed: tuple[str, ...] = ()  # sentences about files that were changed by hand, which a rebuild would not bring


def adopt(workspace: Workspace, path: str, name: str | None = None, *, on_progress: OnProgress = unheard) -> AdoptedSet:
    """Archive the environment at `path` on the target, and write env/NAME.in and env/NAME.lock.

    Raises UsageError where there is no virtual environment or the set exists, Busy while somebody installs
    into it, DiskFull. Once the archive stands, it stays, whatever happens to the lock.
    """
    wanted = _new_set(workspace, path, name)
    with starting("env-adopt", lambda text: on_progress({"text": text})):
        run = from_json(RunRecord, workspace.client.call("env-adopt", {"path": path})["run"])
    on_progress({"text": f"run {run.run_id}", "done": None, "total": None})
    adopted = from_json(Adopted, follow(workspace, run, on_progress=on_progress))
    pinned, unpinned = sort(adopted.distributions)
    on_progress({"text": f"lock: {len(pinned)} packages", "done": None, "total": None})
    try:
        unpinned = _lock(workspace, wanted, adopted, pinned, unpinned)
    except CommandFailed as error:
        raise CommandFailed(
            f"the environment is saved in {adopted.archive}, and {wanted.wanted} is written, but could not be locked:"
            f" {error.message}",
            hint=f"`opsctl env lock {wanted.name}` tries again; {error.hint}",
        ) from None
    pins = parse_lock(read(wanted.lock), label=str(wanted.lock)) if wanted.lock.is_file() else ()
    lock_path = str(wanted.lock) if pins else ""
    return AdoptedSet(adopted, str(wanted.wanted), lock_path, len(pins), unpinned, changed_by_hand(adopted))


def archives(workspace: Workspace) -> list[ArchiveEntry]:
    """The adopted environments that lie on the target, newest first."""
    return [from_json(ArchiveEntry, one) for one in workspace.client.call("env-archives")]


def restore(
    workspace: Workspace, archive_id: str, path: str = "", *, on_progress: OnProgress = unheard
) -> RestoredArchive:
    """Unpack an adopted environment where it lay, or at `path`; raises UsageError where something stands there."""
    request = {"archive": archive_id, "path": path}
    return from_json(RestoredArchive, workspace.client.call("env-restore", request, on_progress=on_progress))


def _new_set(workspace: Workspace, path: str, name: str | None) -> PinnedSet:
    chosen = name or re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).name).strip("-._") or "adopted"
    if not re.fullmatch(NAME, chosen):
        raise UsageError(f"{chosen!r} is no name for a set", hint="letters, digits, dot, dash and underscore")
    wanted = pinned_set(workspace, chosen)
    for file in (wanted.wanted, wanted.lock):
        if file.exists():
            raise UsageError(f"{file} exists; nothing was changed", hint="`--name` gives the set another name")
    return wanted


def _lock(
    workspace: Workspace,
    wanted: PinnedSet,
    adopted: Adopted,
    pinned: list[AdoptedDistribution],
    unpinned: tuple[Unpinned, ...],
) -> tuple[Unpinned, ...]:
    """Write set and lock; what no index offers in that very version joins the unpinned."""
    wanted.folder.mkdir(parents=True, exist_ok=True)  # not before: what fails earlier leaves no empty folder
    while True:
        write_output(wanted.wanted, set_text(adopted, pinned, unpinned, target=workspace.target.name).encode())
        if not pinned:
            return unpinned
        try:
            lock(workspace, wanted.name)
        except CommandFailed as error:
            name, reason = not_offered(error.message, {one.name for one in pinned})
            if not name:
                raise
            lost = next(one for one in pinned if one.name == name)
            pinned = [one for one in pinned if one is not lost]
            unpinned = (*unpinned, Unpinned(lost.name, lost.version, f"not to be had from where we look: {reason}"))
            continue
        other = _other_files(wanted, pinned)
        if not other:
            return unpinned
        pinned = [one for one in pinned if one.name not in other]
        unpinned = (*unpinned, *other.values())
        wanted.lock.unlink()


def _other_files(wanted: PinnedSet, pinned: Iterable[AdoptedDistribution]) -> dict[str, Unpinned]:
    """Local wheels whose hash is not among those that the index offers for their version."""
    locked = by_name(parse_lock(read(wanted.lock), label=str(wanted.lock)))
    return {
        one.name: Unpinned(
            one.name,
            one.version,
            f"a local wheel ({one.origin.url}), and the index has another of it",
            outside_path(one.origin.url),
        )
        for one in pinned
        if one.origin.kind == "file" and f"sha256:{one.origin.sha256}" not in locked.get(one.name, ("", ()))[1]
    }


# --- pure ------------------------------------------------------------------------------------------


def sort(found: Iterable[AdoptedDistribution]) -> tuple[list[AdoptedDistribution], tuple[Unpinned, ...]]:
    """What an index may have, and what it cannot have; a local wheel with a hash may be the index's own file."""
    pinned: list[AdoptedDistribution] = []
    unpinned: list[Unpinned] = []
    for one in found:
        if why := unpinnable(one):
            unpinned.append(Unpinned(one.name, one.version, why, outside_path(one.origin.url)))
        else:
            pinned.append(one)
    return pinned, tuple(unpinned)


def unpinnable(one: AdoptedDistribution) -> str:
    """Why a lock cannot name this distribution, "" if it may."""
    origin = one.origin
    if not one.version:
        return "it says no version"
    if origin.kind == "index" or (origin.kind == "file" and origin.sha256):
        return ""
    words = {
        "file": "a local wheel whose hash nobody kept",
        "folder": "built from a local folder",
        "editable": "an editable install",
        "url": "installed from an address, not from an index",
        "unknown": "of unknown origin",
    }
    return f"{words.get(origin.kind, f'a {origin.kind} checkout')}: {origin.url}"


def outside_path(url: str) -> str:
    """The path that a file:// address of an origin names, "" for any other.

    >>> outside_path("file:///src/my%20engine (git commit ab12)"), outside_path("git+https://host/r@ab")
    ('/src/my engine', '')
    """
    path = url.partition("#")[0].partition(" (git commit ")[0]
    return unquote(path.removeprefix("file://")) if path.startswith("file://") else ""


def not_offered(text: str, names: set[str]) -> tuple[str, str]:
    """The one of `names` that uv cannot have, and why, as its message says; ("", "") if it says something else.

    >>> not_offered("No solution found: Because a==7 has no usable wheels and you require a==7, ...", {"a", "b"})
    ('a', 'a==7 has no usable wheels')
    """
    match = _NOT_OFFERED.search(text) if "No solution found" in text else None
    return (match["name"], match["reason"]) if match and match["name"] in names else ("", "")


def changed_by_hand(adopted: Adopted) -> tuple[str, ...]:
    """A sentence for each thing in an environment that no lock describes."""
    found = []
    for one in adopted.distributions:
        if one.edited:
            found.append(f"{one.name} {one.version} was edited: {some(one.edited, 3)}")
        if one.missing:
            found.append(f"{one.name} {one.version} lacks {some(one.missing, 3)}")
    if adopted.loose:
        found.append(f"files of no distribution: {some(adopted.loose, 5)}")
    return (*found, *adopted.outside)


def set_text(
    adopted: Adopted, pinned: Iterable[AdoptedDistribution], unpinned: Iterable[Unpinned], *, target: str
) -> str:
    """NAME.in: every distribution in its version, and in comments what cannot be had again."""
    rows = sorted(pinned, key=lambda one: one.name)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = [f"# Adopted on {day} from {adopted.path} on {target}; {adopted.archive} there holds it as it was."]
    text.append("# `opsctl env lock` writes the lock from this file.")
    text.append(f"# opsctl: python = {'.'.join(adopted.python.split('.')[:2])}")
    text += _option("platform", platform_of(adopted.machine, adopted.glibc))
    text += _option("torch-backend", torch_backend(rows))
    text.append("# opsctl: complete = yes")
    text += _option("without", " ".join(absent(rows)))
    text += _option("direct", " ".join(roots(rows)))
    text += [f"{one.name}{_equals(one.version)}{one.version}" for one in rows]
    text += [f"# not pinned: {one.name} {one.version}: {one.why}" for one in unpinned]
    return "\n".join(text) + "\n"


def _equals(version: str) -> str:
    """`===` where `==` would also take a local build: 2.13.0+cpu for 2.13.0."""
    return "==" if "+" in version else "==="


def _option(key: str, value: str) -> list[str]:
    return [f"# opsctl: {key} = {value}"] if value else []


def platform_of(machine: str, glibc: str) -> str:
    """The platform that uv is to lock for, "" where it has no name for it.

    >>> platform_of("x86_64", "2.29"), platform_of("aarch64", "2.99"), platform_of("mips", "2.31")
    ('x86_64-manylinux_2_28', 'aarch64-manylinux_2_40', '')
    """
    numbers = re.match(r"2\.(\d+)", glibc)
    fitting = [minor for minor in _MANYLINUX if numbers and minor <= int(numbers[1])]
    return f"{machine}-manylinux_2_{fitting[-1]}" if fitting and machine in _MACHINES else ""


def torch_backend(found: Iterable[AdoptedDistribution]) -> str:
    """Which of PyTorch's own indexes torch came from, as its version tells; "" for the ordinary one."""
    version = next((one.version for one in found if one.name == "torch"), "")
    match = _BACKEND.search(version)
    return match["backend"] if match else ""


def absent(found: Iterable[AdoptedDistribution]) -> tuple[str, ...]:
    """What others ask for and is not among them."""
    everything = list(found)
    names = {one.name for one in everything}
    return tuple(sorted({name for one in everything for name in one.requires} - names))


def roots(found: Iterable[AdoptedDistribution]) -> tuple[str, ...]:
    """What nobody else asks for, installers apart: importing these proves the rest."""
    everything = list(found)
    asked = {name for one in everything for name in one.requires if name != one.name}
    return tuple(one.name for one in everything if one.name not in asked | _INSTALLERS) or tuple(
        one.name for one in everything
    )
