"""`env-contents`: what an environment holds now, distribution by distribution. Changes nothing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from opsctl.agent.env import drift
from opsctl.agent.env.layout import EnvPaths, read_env
from opsctl.agent.env.manifest import VENV, Manifest, listing, read_or_empty
from opsctl.agent.env.origins import read_origin
from opsctl.agent.env.verify import resolve
from opsctl.agent.env.wheels import Distribution, distributions, owners
from opsctl.agent.hashing import digests
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed
from opsctl.records.env import EnvContents, EnvRecord

# written anew by every installation: they say where and how, not what
_OF_INSTALLATION = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_SITE_PACKAGES = re.compile(r"^lib(64)?/python3[^/]*/site-packages/")
# how a script names its interpreter; long paths go through a shell
_LAUNCHER = re.compile(rb"\A#!/bin/sh\n'''exec' [^\n]*\n' '''\n|\A#![^\n]*\n")


def contents(call: Call) -> Any:
    """The EnvContents of request["env"] ("" = active), with every file's hash if request["files"]."""
    paths = resolve(call)
    record = read_env(paths.root)
    if record is None:
        raise CheckFailed(f"{paths.root} has no readable env.json", hint="`opsctl env rebuild` builds the set anew")
    return of(paths, record, has_files=bool(call.request.get("files", False)))


def of(paths: EnvPaths, record: EnvRecord, *, has_files: bool) -> EnvContents:
    """What lies there now, not what was built; what was not touched since the build is not hashed again."""
    found = distributions(paths.root, paths.site_packages())
    origins = {one.name: read_origin(paths.root / one.info) for one in found}
    return EnvContents(
        env_id=paths.env_id,
        name=record.name,
        created=record.created,
        python=record.python,
        platform=record.platform,
        lock=paths.lock.read_text() if paths.lock.is_file() else "",
        packages={one.name: one.version for one in found},
        origins={name: origin for name, origin in origins.items() if origin.kind != "index"},
        files=files_by_distribution(paths.root, _manifest(paths), found) if has_files else {},
    )


def _manifest(paths: EnvPaths) -> Manifest:
    if manifest := read_or_empty(paths.manifest):
        return manifest
    raise CheckFailed(
        f"{paths.manifest} cannot be read any more", hint="`opsctl env rebuild` builds the environment anew"
    )


def files_by_distribution(root: Path, manifest: Manifest, found: tuple[Distribution, ...]) -> dict[str, dict[str, str]]:
    """Distribution name ("" = of none) -> file -> sha256, so that two environments of one content are equal.

    Left out or evened out is what tells only where the environment lies and how it was installed.
    """
    now = listing(root)
    compared = drift.compare(manifest, now)
    built = {path: entry.sha256 for files in manifest.values() for path, entry in files.items()}
    touched = {*compared.edited, *compared.suspect, *compared.added}
    hashed = dict(digests(root, (path for path in touched if path in now.files and now.files[path].link is None)))
    of_venv = manifest.get(VENV, {}).keys() - {path for path in touched if hashed.get(path) != built.get(path)}
    owner = {path: label.partition("==")[0] for path, label in owners(found).items()}
    answer: dict[str, dict[str, str]] = {}
    for path, seen in now.files.items():
        if path in of_venv or (path.rpartition("/")[2] in _OF_INSTALLATION and ".dist-info/" in path):
            continue
        value = f"-> {seen.link}" if seen.link is not None else hashed.get(path) or built.get(path, "")
        if path.startswith("bin/") and seen.link is None:
            value = _script_hash(root / path, value)
        answer.setdefault(owner.get(path, ""), {})[_SITE_PACKAGES.sub("site-packages/", path)] = value
    return answer


def _script_hash(path: Path, sha256: str) -> str:
    """The hash of a script without the rows that name its interpreter; other programs keep theirs."""
    with path.open("rb") as file:
        if file.read(2) != b"#!":
            return sha256
        file.seek(0)
        return hashlib.sha256(_LAUNCHER.sub(b"", file.read(), count=1)).hexdigest()
