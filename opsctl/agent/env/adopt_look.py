"""What an environment made by hand consists of: its distributions, what was done to them, what it takes from elsewhere.

Reads only.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from opsctl.agent.env.adopt_archive import Tree
from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.env.manifest import Seen, source_of
from opsctl.agent.env.origins import read_origin
from opsctl.agent.env.python import facts
from opsctl.agent.env.wheels import Distribution, distributions, mismatches, owners
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.errors import UsageError
from opsctl.formats.listing import shortened
from opsctl.formats.lockfile import normalised
from opsctl.records.env import AdoptedDistribution, Origin

_OPTION = re.compile(r"^\s*(?P<key>[A-Za-z_-]+)\s*=\s*(?P<value>.*?)\s*$", re.M)
_REQUIRES = re.compile(r"^Requires-Dist:\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>[^\n]*)", re.M)
_EXTRA = re.compile(r";.*\bextra\s*==")
_SHOWN_FILES = 20
# beside what a RECORD lists
_OF_INSTALLER = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
# what installers and virtual environments themselves put there
_OWN_LOOSE = re.compile(r"^(_virtualenv\.(py|pth)|distutils-precedence\.pth)$")


def venv_at(text: str, home: Home) -> Path:
    """The folder of the virtual environment that `text` names; raises UsageError for anything else."""
    root = Path(text).expanduser().absolute()
    if not root.is_dir():
        raise UsageError(f"there is no folder {root} on the target")
    if root.resolve().is_relative_to(home.envs.resolve()):
        raise UsageError(f"{root} was built by opsctl", hint="its lock is in it; `opsctl env export` writes its list")
    if (root / "conda-meta").is_dir():
        raise UsageError(
            f"{root} is a conda environment, which holds more than Python packages",
            hint="`conda list --explicit --md5` and `conda-pack` save it; adopt reads virtual environments",
        )
    if not (root / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{root} is no virtual environment: it has no pyvenv.cfg",
            hint="name the folder that has bin/python and pyvenv.cfg in it",
        )
    if home.root.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"opsctl's home {home.root} lies inside of {root}", hint="move `home` of the target")
    return root


def options(root: Path) -> dict[str, str]:
    """What pyvenv.cfg says, keys in lower case."""
    text = (root / "pyvenv.cfg").read_text(errors="replace")
    return {match["key"].lower(): match["value"] for match in _OPTION.finditer(text)}


def python_of(root: Path) -> tuple[str, tuple[str, ...]]:
    """The environment's Python version, and what is to be said about its interpreter."""
    found = facts(str(root / "bin" / "python"))
    if found is not None:
        return found.version, ()
    said = options(root)
    version = said.get("version") or said.get("version_info", "")
    return ".".join(version.split(".")[:3]), (f"{root / 'bin' / 'python'} does not start any more",)


def look(root: Path, found: Tree, hashes: dict[str, str]) -> tuple[tuple[AdoptedDistribution, ...], tuple[str, ...]]:
    """The distributions, and the files in site-packages that none of them owns; `hashes` are those of the archive."""
    packages = EnvPaths(root).site_packages()
    installed = distributions(root, packages)
    files = {
        path: Seen(one.st_size, one.st_mtime_ns, "" if stat.S_ISLNK(one.st_mode) else None)
        for path, one in found.entries.items()
        if not stat.S_ISDIR(one.st_mode)
    }
    of_venv = frozenset(files)  # strays are told apart below
    wrong: dict[str, dict[str, list[str]]] = {}
    for one in mismatches(root, installed, files, hashes, of_venv):
        wrong.setdefault(one.distribution, {}).setdefault(one.problem, []).append(one.path)
    modern = tuple(_distribution(root, one, wrong.get(one.label, {})) for one in installed)
    legacy = tuple(_legacy(packages, {one.name for one in modern}))
    known = {*owners(installed), *(f"{one.info}/{name}" for one in installed for name in _OF_INSTALLER)}
    return modern + legacy, _loose(files, known, packages.relative_to(root).as_posix())


def _distribution(root: Path, one: Distribution, wrong: dict[str, list[str]]) -> AdoptedDistribution:
    metadata = root / one.info / "METADATA"
    return AdoptedDistribution(
        name=one.name,
        version=one.version,
        origin=traced(read_origin(root / one.info)),
        requires=required_names(metadata.read_text(errors="replace") if metadata.is_file() else ""),
        edited=tuple(wrong.get("edited", ()))[:_SHOWN_FILES],
        missing=tuple(wrong.get("missing", ()))[:_SHOWN_FILES],
        has_record=bool(one.files),
    )


def traced(origin: Origin) -> Origin:
    """The origin with what its file or folder says now: a wheel's hash, a checkout's commit."""
    if not origin.url.startswith("file://") or origin.sha256:
        return origin
    path = Path(unquote(origin.url.removeprefix("file://").partition("#")[0]))
    if origin.kind == "file" and path.is_file():
        return replace(origin, sha256=digest(path))
    commit = head_commit(path) if origin.kind in ("editable", "folder") else ""
    return replace(origin, url=f"{origin.url} (git commit {commit})") if commit else origin


def head_commit(folder: Path) -> str:
    """The commit that a git checkout stands at, read without git; "" where it is none."""
    git = folder / ".git"
    with contextlib.suppress(OSError):  # no checkout, or not ours to read
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text().strip()
        packed = (row.partition(" ") for row in (git / "packed-refs").read_text().splitlines())
        return next((commit for commit, _, ref in packed if ref == name), "")
    return ""


def required_names(metadata: str) -> tuple[str, ...]:
    """The distributions that a METADATA asks for without any extra.

    >>> required_names("Requires-Dist: Foo_bar (>=1) ; python_version > '3'\\nRequires-Dist: x; extra == 'test'\\n")
    ('foo-bar',)
    """
    head = metadata.partition("\n\n")[0]
    found = (match for match in _REQUIRES.finditer(head) if not _EXTRA.search(match["rest"]))
    return tuple(dict.fromkeys(normalised(match["name"]) for match in found))


def _legacy(packages: Path, known: set[str]) -> Iterable[AdoptedDistribution]:
    """What setuptools installed by its old ways: .egg-info, .egg and .egg-link."""
    for path in sorted(packages.iterdir()):
        name, _, version = path.name.rpartition(".")[0].partition("-")
        if path.suffix == ".egg-link":
            origin = Origin("editable", path.read_text(errors="replace").partition("\n")[0])
        elif path.suffix in (".egg-info", ".egg"):
            origin = Origin("unknown", f"installed by setup.py: {path.name}")
        else:
            continue
        if normalised(name) not in known:
            yield AdoptedDistribution(normalised(name), version.partition("-")[0], origin, has_record=False)


def _loose(files: dict[str, Seen], known: set[str], packages: str) -> tuple[str, ...]:
    """Files of site-packages that nobody owns, bytecode of known sources apart."""
    prefix = f"{packages}/"
    found = []
    for path in files:
        inside = path.removeprefix(prefix)
        is_bytecode = "__pycache__/" in path and (source_of(path) in known or source_of(path) in files)
        if inside != path and path not in known and not is_bytecode and not _OWN_LOOSE.match(inside):
            found.append(inside)
    legacy = (".egg-info", ".egg", ".egg-link")
    return tuple(path for path in sorted(found) if not any(part.endswith(legacy) for part in path.split("/")[:1]))


def outside(root: Path) -> tuple[str, ...]:
    """A sentence for each way in which the environment imports what does not lie in it."""
    found = []
    said = options(root)
    if said.get("include-system-site-packages", "false").lower() == "true":
        found.append("it also imports what is installed in the system's own Python (include-system-site-packages)")
    for file in sorted(EnvPaths(root).site_packages().glob("*.pth")):
        found += [f"{file.name} adds {row}" for row in _added_folders(file) if not _is_below(root, file.parent / row)]
    interpreter = root / "bin" / "python"
    if interpreter.is_symlink():
        found.append(f"its interpreter is {interpreter.resolve()}, which is not archived")
    return tuple(found)


def _added_folders(file: Path) -> list[str]:
    rows = (row.strip() for row in file.read_text(errors="replace").splitlines())
    return list(dict.fromkeys(row for row in rows if row and not row.startswith(("#", "import ", "import\t"))))


def _is_below(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def shown(names: Iterable[str]) -> tuple[str, ...]:
    """The first names, and how many more there are."""
    return tuple(shortened(tuple(names), _SHOWN_FILES))
