"""Fills a fresh environment with exactly what a lock names, and holds every file against its wheel."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.env.manifest import Listing, listing
from opsctl.agent.env.uv import Uv
from opsctl.agent.env.wheels import Distribution, Mismatch, check_pins, distributions, mismatches
from opsctl.agent.hashing import digests
from opsctl.agent.jobs import Progress
from opsctl.errors import CommandFailed, DiskFull
from opsctl.formats.lockfile import Pin

_DOWNLOADING = re.compile(r"^\s*Downloading (?P<name>\S+) \((?P<size>[\d.]+)(?P<unit>[KMG]?i?B)\)")
_DOWNLOADED = re.compile(r"^\s*Downloaded (?P<name>\S+)")
_UNIT_MIB = {"B": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 1024.0}
_LOOK_PERIOD_S = 0.5


@dataclass(frozen=True)
class Installed:
    """A filled environment: what lies there, and what each distribution says it holds."""

    files: Listing
    hashes: dict[str, str]
    distributions: tuple[Distribution, ...]
    notes: tuple[str, ...] = ()


class InstallWatch:
    """Turns uv's rows, and what appears in site-packages, into progress."""

    def __init__(self, progress: Progress, site_packages: Path, *, num_packages: int) -> None:
        self._progress = progress
        self._site_packages = site_packages
        self._num_packages = num_packages
        self._sizes_mib: dict[str, float] = {}
        self._arrived: set[str] = set()

    def row(self, text: str) -> None:
        """One row of uv's output."""
        if started := _DOWNLOADING.match(text):
            self._sizes_mib[started["name"]] = float(started["size"]) * _UNIT_MIB.get(started["unit"], 1.0)
        elif arrived := _DOWNLOADED.match(text):
            self._arrived.add(arrived["name"])
        else:
            self._progress.log(text)
            return
        done = sum(size for name, size in self._sizes_mib.items() if name in self._arrived)
        total = sum(self._sizes_mib.values())
        self._progress.phase("download", f"{done:.0f} of {total:.0f} MiB", done=round(done, 1), total=round(total, 1))

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
        before = 0
        while not ended.wait(_LOOK_PERIOD_S):
            count = sum(1 for _ in self._site_packages.glob("*.dist-info"))
            if count != before:
                self._progress.phase(
                    "install", f"{count} of {self._num_packages} packages", done=count, total=self._num_packages
                )
            before = count


def _look_at(paths: EnvPaths, site_packages: Path) -> tuple[Listing, dict[str, str], tuple[Distribution, ...]]:
    files = listing(paths.root)
    regular = [path for path, seen in files.files.items() if seen.link is None]
    return files, dict(digests(paths.root, regular)), distributions(paths.root, site_packages)


def _wrong(paths: EnvPaths, site_packages: Path, venv: frozenset[str]) -> tuple[Installed, tuple[Mismatch, ...]]:
    files, hashes, found = _look_at(paths, site_packages)
    return Installed(files, hashes, found), mismatches(paths.root, found, files.files, hashes, venv)


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


def _refuse_hard_links(files: Listing) -> None:
    for path, seen in files.files.items():
        if seen.link is None and seen.num_names > 1:
            raise CommandFailed(
                f"{path} shares its bytes with {seen.num_names - 1} other files: uv made hard links",
                hint="an edit in the environment would reach uv's cache; this is a fault of opsctl, please report it",
            )


def install(paths: EnvPaths, uv: Uv, pins: tuple[Pin, ...], progress: Progress, watch: InstallWatch) -> Installed:
    """Fill the empty environment; raises CommandFailed or DiskFull, and then it is of no use."""
    site_packages = paths.site_packages()
    venv = frozenset(listing(paths.root).files)
    with watch.looking():
        uv.sync(paths.exact)
    progress.phase("check", "every file against its wheel's RECORD")
    installed, wrong = _wrong(paths, site_packages, venv)
    notes: tuple[str, ...] = ()
    if wrong:
        notes = poisoned(wrong)
        for note in notes:
            progress.log(f"warning: {note}")
        progress.phase("heal", "fetching changed packages anew")
        _heal(paths, uv, wrong)
        installed, wrong = _wrong(paths, site_packages, venv)
        # fresh from a wheel whose hash the lock names: what still differs is the wheel's own RECORD
        notes += tuple(f"{one.distribution}: its own RECORD is wrong about {one.path}" for one in wrong)
    _refuse_hard_links(installed.files)
    if odd := check_pins(installed.distributions, pins):
        raise CommandFailed(f"the environment is not what the lock names: {'; '.join(odd)}")
    return Installed(installed.files, installed.hashes, installed.distributions, notes)
