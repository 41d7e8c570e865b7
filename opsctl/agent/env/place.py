"""The path by which jobs see an environment: the same for all builds of one set.

Torch keeps the path of its headers in the keys of the C++ code that it compiles: under the name of one build,
every rebuild, and every other machine, would find all graphs and compile their code anew.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from opsctl.agent.env.layout import read_env
from opsctl.agent.files import fsync_folder

_DIGITS = 12


def place(root: Path) -> Path:
    """The path for jobs of the environment at `root`; its own where it is no complete build of a set."""
    record = read_env(root)
    link = root.with_name(record.fingerprint[:_DIGITS]) if record and record.fingerprint else root
    return root if link.exists() and not link.is_symlink() else link


def leads_to(link: Path, root: Path) -> bool:
    """Whether `link` is, or leads to, the environment at `root`."""
    return link == root or (link.is_symlink() and link.readlink() == Path(root.name))


def ensure_place(root: Path) -> Path:
    """The same, and let it lead to this build; a run that sees another build by it must have ended."""
    link = place(root)
    if leads_to(link, root):
        return link
    part = link.with_name(f".{link.name}.{os.getpid()}.part")
    with contextlib.suppress(FileNotFoundError):  # nothing is in the way
        part.unlink()
    part.symlink_to(root.name)
    part.replace(link)
    fsync_folder(link.parent)
    return link
