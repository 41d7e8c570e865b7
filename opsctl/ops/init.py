"""Writes the first opsctl.yaml. Never overwrites one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from opsctl.config import FILE_NAME, parse
from opsctl.errors import UsageError


def example() -> str:
    """The complete, commented configuration."""
    return resources.files("opsctl").joinpath("opsctl.example.yaml").read_text()


def init_local(folder: Path) -> tuple[Path, bool]:
    """Write opsctl.yaml for this machine into `folder`; returns its path and whether it is new.

    A file that stands and loads is kept; one that does not load raises its ConfigError.
    """
    path = folder / FILE_NAME
    if path.exists():
        parse(path.read_text(), path)
        return path, False
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="run init in your project's folder")
    part = path.with_suffix(".yaml.part")
    part.write_text(example())
    part.replace(path)
    return path, True
