"""`env lock`: pins a set to versions and hashes with uv, for the Python and platform that the set names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opsctl.config_file import read
from opsctl.errors import ConfigError, UsageError
from opsctl.formats.lockfile import LockChanges, SetOptions, changes, parse_lock, parse_options, requirement_names
from opsctl.ops.sets import PinnedSet, pinned_set, sha256_of
from opsctl.ops.tools import run_uv
from opsctl.ops.workspace import Workspace


@dataclass(frozen=True)
class LockResult:
    """What locking came to."""

    path: str
    num_packages: int
    is_new: bool
    changes: LockChanges


def lock(
    workspace: Workspace, name: str | None = None, *, upgrade: tuple[str, ...] = (), upgrade_all: bool = False
) -> LockResult:
    """Write NAME.lock from NAME.in; what is pinned stays pinned unless upgraded.

    Raises ConfigError for a set that is wrong, CommandFailed for one that cannot be resolved; the
    old lock then stands as it was.
    """
    wanted = pinned_set(workspace, name)
    text = wanted.wanted_text()
    options = parse_options(text, label=str(wanted.wanted))
    if not options.python:
        raise ConfigError(
            f"{wanted.wanted}: the set names no Python", hint="add a row such as `# opsctl: python = 3.11`"
        )
    old = read(wanted.lock) if wanted.lock.is_file() else ""
    before = parse_lock(old, label=str(wanted.lock)) if old else ()
    _refuse_unknown(upgrade, {pin.name for pin in before} | set(requirement_names(text)), wanted)
    with _part(wanted, old) as part:
        _resolve(workspace, wanted, options, part, upgrade=upgrade, upgrade_all=upgrade_all)
        if not requirement_names(part.read_text()):
            raise ConfigError(
                f"{wanted.wanted}: the set wants nothing", hint="add a requirement a row, such as `numpy`"
            )
        new = _header(wanted, options, text) + part.read_text()
        after = parse_lock(new, label=str(part))
        part.write_text(new)
        part.replace(wanted.lock)
    return LockResult(str(wanted.lock), len(after), not old, changes(before, after))


def _refuse_unknown(upgrade: tuple[str, ...], known: set[str], wanted: PinnedSet) -> None:
    from opsctl.config import nearest
    from opsctl.formats.lockfile import normalised

    for package in upgrade:
        if normalised(package) not in known:
            raise UsageError(f"{package} is not in the set {wanted.name}", hint=nearest(package, sorted(known)))


@contextmanager
def _part(wanted: PinnedSet, old: str) -> Iterator[Path]:
    """A file beside the lock, seeded with it so that uv keeps its versions, and gone at the end."""
    part = wanted.folder / f".{wanted.name}.lock.{os.getpid()}.part"
    try:
        part.write_text(old)
        yield part
    finally:
        part.unlink(missing_ok=True)


def _resolve(
    workspace: Workspace,
    wanted: PinnedSet,
    options: SetOptions,
    part: Path,
    *,
    upgrade: tuple[str, ...],
    upgrade_all: bool,
) -> None:
    words = ["pip", "compile", wanted.wanted.name, "--output-file", part.name, "--quiet"]
    words += ["--generate-hashes", "--only-binary", ":all:", "--no-header", "--python-version", options.python]
    words += ["--python-platform", options.platform] if options.platform else []
    words += [word for package in upgrade for word in ("--upgrade-package", package)]
    words += ["--upgrade"] if upgrade_all else []
    words += ["--overrides", wanted.wanted.name] if options.is_complete else []
    words += ["--excludes", "-"] if options.without else []
    run_uv(
        workspace,
        tuple(words),
        doing=f"locking {wanted.name}",
        folder=wanted.folder,
        stdin="".join(f"{name}\n" for name in options.without),
        torch_backend=options.torch_backend,
    )


def _header(wanted: PinnedSet, options: SetOptions, text: str) -> str:
    rows = [f"# Written by `opsctl env lock {wanted.name}` from {wanted.wanted.name}; do not edit."]
    rows.append(f"# opsctl: python = {options.python}")
    rows += [f"# opsctl: platform = {options.platform}"] if options.platform else []
    rows += [f"# opsctl: torch-backend = {options.torch_backend}"] if options.torch_backend else []
    rows.append(f"# opsctl: direct = {' '.join(options.direct or requirement_names(text))}")
    rows.append(f"# opsctl: set-sha256 = {sha256_of(text)}")
    return "\n".join(rows) + "\n"
