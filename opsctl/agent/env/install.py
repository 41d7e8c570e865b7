"""Fills a fresh environment with exactly what a lock names, and holds every file against its wheel."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from opsctl.agent.env.copies import own_copies
from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.env.manifest import Listing, listing
from opsctl.agent.env.uv import Uv
from opsctl.agent.env.wheels import Distribution, Mismatch, check_pins, mismatches, parse_infos, read_infos
from opsctl.agent.jobs import Progress
from opsctl.errors import CommandFailed, DiskFull
from opsctl.formats.lockfile import Pin, normalised

_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG]?i?B)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")
_UNIT_MIB = {"B": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 1024.0}
_LOOK_PERIOD_S = 0.5
_SHOWN_MIB = 1.0  # below it, bytes tell less than packages


@dataclass(frozen=True)
class Installed:
    """A filled environment: what lies there, and what each distribution says it holds."""

    files: Listing
    hashes: dict[str, str]
    distributions: tuple[Distribution, ...]
    notes: tuple[str, ...] = ()


class InstallWatch:
    """Turns uv's rows, and what appears in site-packages, into progress.

    `sizes` are the bytes of distributions once installed, as far as they are known.
    """

    def __init__(
        self, progress: Progress, site_packages: Path, *, num_packages: int, sizes: dict[str, int] | None = None
    ) -> None:
        self._progress = progress
        self._site_packages = site_packages
        self._num_packages = num_packages
        self._sizes = sizes or {}
        self._downloads_mib: dict[str, float] = {}
        self._arrived: set[str] = set()

    def row(self, text: str) -> None:
        """One row of uv's output."""
        if started := _DOWNLOADING.match(text):
            self._downloads_mib[started["name"]] = float(started["size"]) * _UNIT_MIB.get(started["unit"], 1.0)
        elif arrived := _DOWNLOADED.match(text):
            self._arrived.add(arrived["name"])
        else:
            self._progress.log(text)
            return
        self._progress.phase("download", **downloaded(self._downloads_mib, self._arrived))

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Count installed packages until the block ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._look, args=(ended,), name="install", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _look(self, ended: threading.Event) -> None:
        before: set[str] = set()
        while not ended.wait(_LOOK_PERIOD_S):
            # uv writes this file last
            infos = {path.parent.name for path in self._site_packages.glob("*.dist-info/INSTALLER")}
            names = {normalised(info.partition("-")[0]) for info in infos}
            if names != before:
                self._progress.phase("install", **arrived_text(names, self._num_packages, self._sizes))
            before = names


class Told(TypedDict):
    """What a phase of a job tells."""

    text: str
    done: float | None
    total: float | None


def downloaded(sizes_mib: dict[str, float], arrived: set[str]) -> Told:
    """How far the downloads have come that uv finds worth a row: those of 1 MiB and more; pure.

    >>> downloaded({"torch": 530.0, "numpy": 16.0}, {"numpy"})["text"]
    '1 of 2 large packages, 16 of 546 MiB'
    """
    done = sum(size for name, size in sizes_mib.items() if name in arrived)
    total = sum(sizes_mib.values())
    num_arrived = sum(1 for name in sizes_mib if name in arrived)
    text = f"{num_arrived} of {len(sizes_mib)} large packages, {done:.0f} of {total:.0f} MiB"
    return Told(text=text, done=round(done, 1), total=round(total, 1))


def arrived_text(names: set[str], num_packages: int, sizes: dict[str, int]) -> Told:
    """How far the installation has come: in bytes where the sizes are known, else in packages; pure.

    >>> arrived_text({"a"}, 2, {"a": 3 << 20, "b": 1 << 20})["text"]
    '1 of 2 packages, 3 of 4 MiB'
    >>> arrived_text({"a"}, 2, {"a": 3 << 20})["text"]
    '1 of 2 packages'
    """
    text = f"{len(names)} of {num_packages} packages"
    total = sum(sizes.values()) / 2**20
    if len(sizes) < num_packages or total < _SHOWN_MIB:
        return Told(text=text, done=len(names), total=num_packages)
    done = sum(sizes.get(name, 0) for name in names) / 2**20
    return Told(text=f"{text}, {done:.0f} of {total:.0f} MiB", done=round(done, 1), total=round(total, 1))


@dataclass(frozen=True)
class _Check:
    """Holds what was installed against its wheels, once every file of it has bytes of its own."""

    paths: EnvPaths
    venv: frozenset[str]  # what was there before
    pool: Executor
    progress: Progress

    def look(self) -> tuple[Installed, tuple[Mismatch, ...]]:
        """What lies there now, and what of it is not as its wheel says."""
        self.progress.phase("check", "every file against its wheel's RECORD")
        root = self.paths.root
        infos, seen = read_infos(root, self.paths.site_packages()), listing(root)
        with ThreadPoolExecutor(1) as beside:
            parsing = beside.submit(parse_infos, infos)  # their texts are here: the files are on the move
            owned = own_copies(self.pool, root, seen.files, told=self._told)
            found = parsing.result()
        wrong = mismatches(root, found, owned.files, owned.hashes, self.venv)
        return Installed(Listing(owned.files, seen.bytecode), owned.hashes, found), wrong

    def _told(self, done: int, total: int) -> None:
        done_mib, total_mib = done / 2**20, total / 2**20
        self.progress.phase("check", f"{total_mib:.0f} MiB", done=round(done_mib, 1), total=round(total_mib, 1))


def poisoned(wrong: tuple[Mismatch, ...]) -> tuple[str, ...]:
    """A sentence for each distribution that uv's cache holds otherwise than its wheel does; pure."""
    by_name: dict[str, list[Mismatch]] = {}
    for one in wrong:
        by_name.setdefault(one.distribution.partition("==")[0], []).append(one)
    return tuple(_poisoned(name, some) for name, some in by_name.items())


def _poisoned(name: str, some: list[Mismatch]) -> str:
    more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
    if not name:
        return (
            f"uv's cache holds {some[0].path}{more}, which no wheel brought; `uv cache clean` on the target clears it"
        )
    return (
        f"uv's cache holds {name} changed: {some[0].path} is {some[0].problem}{more};"
        f" `uv cache clean {name}` on the target clears it"
    )


def _heal(paths: EnvPaths, uv: Uv, wrong: tuple[Mismatch, ...]) -> None:
    """Bring what differs from freshly fetched, hash-checked files, past uv's cache."""
    for stray in (one for one in wrong if one.problem == "added"):
        (paths.root / stray.path).unlink()
    names = tuple(sorted({one.distribution.partition("==")[0] for one in wrong if one.problem != "added"}))
    if not names:
        return
    try:
        uv.reinstall(paths.exact, names)
    except DiskFull:
        raise
    except CommandFailed as error:
        raise CommandFailed(
            f"{poisoned(wrong)[0]}; and a fresh copy could not be had: {error.message}",
            hint=f"clear the cache entry on the target (uv cache clean {' '.join(names)}), then rebuild",
        ) from None


def refuse_hard_links(files: Listing) -> None:
    """Raise CommandFailed for a file that has another name: an edit of it would reach whatever shares its bytes."""
    for path, seen in files.files.items():
        if seen.link is None and seen.num_names > 1:
            raise CommandFailed(
                f"{path} shares its bytes with {seen.num_names - 1} other files",
                hint="an edit in the environment would reach uv's cache; this is a fault of opsctl, please report it",
            )


def install(
    paths: EnvPaths, uv: Uv, pins: tuple[Pin, ...], *, pool: Executor, progress: Progress, watch: InstallWatch
) -> Installed:
    """Fill the empty environment; raises CommandFailed or DiskFull, and then it is of no use."""
    check = _Check(paths, frozenset(listing(paths.root).files), pool, progress)
    with watch.looking():
        uv.sync(paths.exact)
    installed, wrong = check.look()
    notes: tuple[str, ...] = ()
    if wrong:
        notes = poisoned(wrong)
        for note in notes:
            progress.log(f"warning: {note}")
        progress.phase("heal", "fetching changed packages anew")
        _heal(paths, uv, wrong)
        installed, wrong = check.look()
        # fresh from a wheel whose hash the lock names: what still differs is the wheel's own RECORD
        notes += tuple(f"{one.distribution}: its own RECORD is wrong about {one.path}" for one in wrong)
    if odd := check_pins(installed.distributions, pins):
        raise CommandFailed(f"the environment is not what the lock names: {'; '.join(odd)}")
    return Installed(installed.files, installed.hashes, installed.distributions, notes)
