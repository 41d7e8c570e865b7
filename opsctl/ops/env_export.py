"""`env export`: what an environment holds as a requirements file for pip or uv. Never prints."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import UsageError
from opsctl.formats.lockfile import parse_lock, parse_options
from opsctl.formats.output import output_place, write_output
from opsctl.ops.env import contents
from opsctl.ops.workspace import Workspace
from opsctl.records.env import EnvContents, Origin

_TORCH_INDEX = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class Exported:
    """A requirements file, and what it cannot say."""

    env_id: str
    text: str
    notes: tuple[str, ...] = ()


def export(workspace: Workspace, env_id: str = "", *, has_hashes: bool = False, output: Path | None = None) -> Exported:
    """The requirements of what stands in an environment ("" = the active one) now, written to `output` if given."""
    place = output_place(output) if output is not None else None  # before anything is asked
    found = requirements(contents(workspace, env_id), has_hashes=has_hashes)
    if place is not None:
        _write(place, found.text)
    return found


def _write(output: Path, text: str) -> None:
    try:
        write_output(output, text.encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {output}: {error.strerror}", hint="give the path of a file to --output"
        ) from None


def requirements(found: EnvContents, *, has_hashes: bool) -> Exported:
    """The file for what an environment holds; hashes stand where its lock names that very version. Pure."""
    pins = {pin.name: pin for pin in parse_lock(found.lock, label=found.env_id)} if found.lock else {}
    backend = parse_options(found.lock, label=found.env_id).torch_backend
    built = time.strftime("%Y-%m-%d", time.gmtime(found.created))
    rows = [f"# {found.env_id}, built from the set {found.name} on {built} for Python {found.python}"]
    rows += [f"--extra-index-url {_TORCH_INDEX}/{backend}"] if backend else []
    notes: list[str] = []
    for name, version in sorted(found.packages.items()):
        pin = pins.get(name)
        is_pinned = pin is not None and pin.version == version and name not in found.origins
        row, note = _row(name, version, found.origins.get(name))
        hashes = "".join(f" \\\n    --hash={value}" for value in pin.hashes) if pin and is_pinned and has_hashes else ""
        rows.append(row + hashes)
        notes += [note] if note else []
        if has_hashes and not is_pinned and not row.startswith("#"):
            notes.append(f"{name} {version} came after the build, so that no hash is known")
    return Exported(found.env_id, "\n".join(rows) + "\n", tuple(notes))


def _row(name: str, version: str, origin: Origin | None) -> tuple[str, str]:
    """One row, and what is to be said about it."""
    if origin is None:
        return f"{name}=={version}", ""
    if origin.kind == "url":
        digest = f"#sha256={origin.sha256}" if origin.sha256 and "#" not in origin.url else ""
        return f"{name} @ {origin.url}{digest}", ""
    if "+" in origin.url.partition("://")[0]:
        return f"{name} @ {origin.url}", ""
    what = {"file": "a local file", "folder": "a local folder", "editable": "an editable install"}.get(origin.kind, "")
    row = f"# {name}=={version} came from {what or 'somewhere unknown'}: {origin.url}"
    return row, f"{name} {version} came from {what or 'somewhere unknown'} ({origin.url}) and is only a comment"
