"""`env fetch`: the files that a lock names, for the target's Python and platform, into a folder here. Never prints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import tomllib

from opsctl.errors import CommandFailed
from opsctl.formats.lockfile import Pin, SetOptions, by_name, exact_requirements, parse_lock, parse_options
from opsctl.ops.download import Downloader
from opsctl.ops.jobs import OnProgress, unheard
from opsctl.ops.local_file import sha256_of_file
from opsctl.ops.sets import configured, pinned_set
from opsctl.ops.tools import run_uv
from opsctl.ops.workspace import Workspace

_SHOWN = 3  # hashes; a package may have dozens of files


@dataclass(frozen=True)
class Offered:
    """A wheel that an index or a folder offers, and that the lock allows."""

    name: str  # of the file
    url: str
    sha256: str
    size: int | None  # None where the index does not say


@dataclass(frozen=True)
class Fetched:
    """What a folder of wheels holds now."""

    folder: str
    name: str  # the set
    python: str
    platform: str
    num_files: int
    num_new: int
    size_mib: float


def fetch(workspace: Workspace, folder: Path, name: str | None = None, *, on_progress: OnProgress = unheard) -> Fetched:
    """Fill `folder` with the wheels of NAME.lock; what lies there with the right hash is left as it is.

    Raises ConfigError for a wrong lock, CommandFailed for a file that cannot be had or is another than the lock names.
    """
    wanted = pinned_set(workspace, name)
    text, label = wanted.lock_text(), str(wanted.lock)
    pins, options = parse_lock(text, label=label), _for_target(workspace, parse_options(text, label=label))
    on_progress({"text": f"looking for {len(pins)} packages", "done": None, "total": None})
    offers = list(_offers(workspace, pins, options))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [one for one in offers if not _stands(folder / one.name, one.sha256)]
    _bring_all(workspace, folder, missing, on_progress)
    num_bytes = sum((folder / one.name).stat().st_size for one in offers)
    return Fetched(
        folder=str(folder),
        name=wanted.name,
        python=options.python,
        platform=options.platform,
        num_files=len(offers),
        num_new=len(missing),
        size_mib=round(num_bytes / 2**20, 1),
    )


def _for_target(workspace: Workspace, options: SetOptions) -> SetOptions:
    """The options, with what the set leaves open asked of the target."""
    if options.python and options.platform:
        return options
    found = workspace.client.call("probe")
    return replace(
        options,
        python=options.python or found["python"],
        platform=options.platform or f"{found['machine']}-manylinux_2_28",
    )


def _stands(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of_file(path) == sha256


def _offers(workspace: Workspace, pins: tuple[Pin, ...], options: SetOptions) -> Iterator[Offered]:
    """The wheels that uv finds for these pins; raises CommandFailed for a package with none that the lock allows."""
    words = ("pip", "compile", "-", "--no-deps", "--format", "pylock.toml", "--no-header", "--quiet")
    place = ("--python-version", options.python, "--python-platform", options.platform, "--only-binary", ":all:")
    torch = next((pin.version for pin in pins if pin.name == "torch"), "")
    found = run_uv(
        workspace,
        (*words, *place, "--index-strategy", "unsafe-best-match"),
        doing="looking for the locked files",
        stdin=exact_requirements(pins),
        torch_backend=options.torch_backend,
        torch_version=torch,
    )
    return allowed(tomllib.loads(found).get("packages", []), pins)


def allowed(packages: list[dict[str, object]], pins: tuple[Pin, ...]) -> Iterator[Offered]:
    """Of the packages of a pylock.toml, the wheels whose hash the pins name; pure."""
    locked = by_name(pins)
    for package in packages:
        _, hashes = locked.get(str(package["name"]), ("", frozenset[str]()))
        offers = [_offer(wheel) for wheel in package.get("wheels", [])]  # type: ignore[attr-defined]  # TOML has no types
        fitting = [one for one in offers if f"sha256:{one.sha256}" in hashes]
        if not fitting:
            found = ", ".join(f"{one.name} with sha256:{one.sha256}" for one in offers) or "no wheel"
            wanted = ", ".join(sorted(hashes)[:_SHOWN])
            raise CommandFailed(
                f"{package['name']}=={package.get('version', '?')}: offered is {found}; the lock says {wanted}",
                hint="the index or folder serves another file than was locked: check find_links and index_url,"
                " or lock again if the change is wanted",
            )
        yield from fitting


def _offer(wheel: dict[str, object]) -> Offered:
    url = str(wheel.get("url") or Path(str(wheel["path"])).absolute().as_uri())
    size = wheel.get("size")
    hashes = wheel["hashes"]
    assert isinstance(hashes, dict), "pylock.toml says so"
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    return Offered(name, url, str(hashes.get("sha256", "")), size if isinstance(size, int) else None)


def _bring_all(workspace: Workspace, folder: Path, missing: list[Offered], on_progress: OnProgress) -> None:
    total = sum(one.size or _local_size(one) for one in missing)
    done = 0
    with Downloader(configured(workspace, os.environ)) as downloader:
        for number, one in enumerate(missing, start=1):
            head = f"fetch: {number} of {len(missing)}, {one.name}"

            def tell(num_bytes: int, *, before: int = done, head: str = head) -> None:
                on_progress({"text": head, "done": before + num_bytes, "total": total})

            tell(0)
            if one.url.startswith("file:"):
                _copy(one, folder / one.name)
            else:
                downloader.bring(one.url, folder / one.name, sha256=one.sha256, tell=tell)
            done += (folder / one.name).stat().st_size


def _local(one: Offered) -> Path:
    return Path(url2pathname(urlsplit(one.url).path))


def _local_size(one: Offered) -> int:
    return _local(one).stat().st_size if one.url.startswith("file:") and _local(one).is_file() else 0


def _copy(one: Offered, path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    shutil.copyfile(_local(one), part)
    if (found := sha256_of_file(part)) != one.sha256:
        part.unlink()
        raise CommandFailed(f"{one.name} has hash {found} instead of {one.sha256}, from {_local(one)}")
    part.replace(path)
