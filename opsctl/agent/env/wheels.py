"""What a wheel's own RECORD says against what was installed: the proof that no byte was changed.

uv checks a wheel's hash when it downloads it, and unpacks it into its cache; what lies in that
cache is not looked at again. An edit there would be in every later environment.
"""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from opsctl.agent.env.manifest import Seen
from opsctl.agent.hashing import digest
from opsctl.formats.lockfile import Pin, normalised


@dataclass(frozen=True)
class Recorded:
    """One row of a RECORD; `algorithm` is "" where the wheel gives no hash."""

    path: str  # relative to the environment
    algorithm: str
    hexdigest: str


@dataclass(frozen=True)
class Distribution:
    """One installed distribution with what it says it holds."""

    name: str
    version: str
    info: str  # its .dist-info folder, relative to the environment
    files: tuple[Recorded, ...]
    installer: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Mismatch:
    """One file that is not what its distribution says."""

    distribution: str
    path: str
    problem: str  # edited, missing or added


def _joined(folder: str, name: str) -> str:
    """`folder`/`name` with .. resolved; absolute names stay as they are."""
    parts: list[str] = []
    for part in PurePosixPath(folder, name).parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def parse_record(text: str, *, folder: str) -> tuple[Recorded, ...]:
    """The rows of a RECORD whose distribution was installed into `folder` of the environment.

    >>> parse_record("../../../bin/x,sha256=AAAA,1\\nx/__pycache__/a.pyc,,\\n", folder="lib/python3/site-packages")[0]
    Recorded(path='bin/x', algorithm='sha256', hexdigest='000000')
    """
    rows = []
    for row in csv.reader(io.StringIO(text)):
        if len(row) < 2 or "__pycache__/" in row[0]:
            continue
        algorithm, _, value = row[1].partition("=")
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
        rows.append(Recorded(_joined(folder, row[0]), algorithm, raw.hex()))
    return tuple(rows)


@dataclass(frozen=True)
class Info:
    """What a .dist-info folder holds, as text: "" for a file that is not there."""

    path: str  # of the folder, relative to the environment
    metadata: str
    record: str
    installer: str


def read_info(root: Path, info: Path) -> Info:
    """The texts of this .dist-info folder."""

    def text(name: str) -> str:
        return (info / name).read_text(errors="replace") if (info / name).is_file() else ""

    return Info(info.relative_to(root).as_posix(), text("METADATA"), text("RECORD"), text("INSTALLER"))


def read_infos(root: Path, site_packages: Path) -> tuple[Info, ...]:
    """The same of every distribution in the environment."""
    return tuple(read_info(root, info) for info in sorted(site_packages.glob("*.dist-info")))


def parse_info(info: Info) -> Distribution:
    """The distribution that these texts describe; a broken one has no version or files; pure."""
    from email.parser import HeaderParser  # 20 ms that a quick verification must not pay

    metadata = HeaderParser().parsestr(info.metadata)
    folder, _, stem = info.path.removesuffix(".dist-info").rpartition("/")
    stem_name, _, stem_version = stem.partition("-")
    return Distribution(
        name=normalised(metadata.get("Name") or stem_name),
        version=metadata.get("Version") or stem_version,
        info=info.path,
        files=parse_record(info.record, folder=folder),
        installer=info.installer.strip(),
    )


def parse_infos(infos: tuple[Info, ...]) -> tuple[Distribution, ...]:
    """All of them, by name; pure."""
    return tuple(sorted(map(parse_info, infos), key=lambda one: one.name))


def read_distribution(root: Path, info: Path) -> Distribution:
    """The distribution whose .dist-info folder this is."""
    return parse_info(read_info(root, info))


def distributions(root: Path, site_packages: Path) -> tuple[Distribution, ...]:
    """All distributions installed in the environment, by name."""
    return parse_infos(read_infos(root, site_packages))


def check_pins(found: tuple[Distribution, ...], pins: tuple[Pin, ...]) -> tuple[str, ...]:
    """Sentences about what is installed and should not be, or the other way round.

    A pin with a marker may rightly be left out: uv knows whether it applies here.
    """
    installed = {one.name: one.version for one in found}
    versions: dict[str, list[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, []).append(pin.version)
    needed = [pin for pin in pins if not pin.marker]
    missing = [f"{pin.name}=={pin.version} is not there" for pin in needed if pin.name not in installed]
    extra = [f"{name}=={version} is not in the lock" for name, version in installed.items() if name not in versions]
    other = [
        f"{name} is {installed[name]} instead of {' or '.join(allowed)}"
        for name, allowed in versions.items()
        if name in installed and installed[name] not in allowed
    ]
    return tuple(missing + extra + other)


def owners(found: tuple[Distribution, ...]) -> dict[str, str]:
    """Path -> label of the distribution that says it holds it."""
    return {row.path: one.label for one in found for row in one.files}


def mismatches(
    root: Path, found: tuple[Distribution, ...], files: dict[str, Seen], hashes: dict[str, str], venv: frozenset[str]
) -> tuple[Mismatch, ...]:
    """Files that differ from their RECORD, are missing, or that no distribution nor the venv owns."""
    rows = [(one, row, _problem(root, row, files, hashes)) for one in found for row in one.files]
    # two wheels may bring one file; whichever came last is right
    right = {row.path for _, row, problem in rows if not problem}
    wrong = [Mismatch(one.label, row.path, problem) for one, row, problem in rows if problem and row.path not in right]
    known = owners(found)
    stray = [Mismatch(_guess(path, found), path, "added") for path in files if path not in known and path not in venv]
    return tuple(wrong + stray)


def _problem(root: Path, row: Recorded, files: dict[str, Seen], hashes: dict[str, str]) -> str:
    if row.path not in files:
        return "missing" if row.algorithm else ""
    if not row.algorithm:
        return ""
    actual = hashes.get(row.path) if row.algorithm == "sha256" else digest(root / row.path, row.algorithm)
    return "" if actual == row.hexdigest else "edited"


def _guess(path: str, found: tuple[Distribution, ...]) -> str:
    """The distribution that owns most of the folder in which a stray file lies, "" if none does."""
    folder = path.rpartition("/")[0]
    for one in found:
        if any(row.path.startswith(folder + "/") for row in one.files) and not folder.endswith("site-packages"):
            return one.label
    return ""
