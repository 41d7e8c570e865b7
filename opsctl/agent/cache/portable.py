"""Files of a cache that hold the path of the cache itself, written so that they fit any place.

Triton looks for the parts of a kernel only under the absolute paths in its group files: a cache that
is moved as it is would compile every kernel anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from opsctl.agent.hashing import digests

PLACE = b"[opsctl:cache]"  # stands for the folder of the cache


def is_group(name: str) -> bool:
    """Whether this is one of Triton's group files.

    >>> is_group("triton/0/ABC/__grp__kernel.json"), is_group("triton/0/ABC/kernel.json")
    (True, False)
    """
    base = PurePosixPath(name).name
    return base.startswith("__grp__") and base.endswith(".json")


def _quoted(root: str) -> bytes:
    return json.dumps(root).encode()[1:-1]


def portable(data: bytes, root: str) -> bytes:
    """A group file of the cache at `root`, without its place.

    >>> portable(b'{"child_paths": {"k.cubin": "/home/a/triton/k.cubin"}}', "/home/a")
    b'{"child_paths": {"k.cubin": "[opsctl:cache]/triton/k.cubin"}}'
    """
    return data.replace(_quoted(root) + b"/", PLACE + b"/")


def placed(data: bytes, root: str) -> bytes:
    """The same file for a cache at `root`."""
    return data.replace(PLACE + b"/", _quoted(root) + b"/")


def make_portable(folder: Path, names: Iterable[str], *, root: str) -> None:
    """Take `root` out of the group files of a copy in `folder`."""
    for name in filter(is_group, names):
        (folder / name).write_bytes(portable((folder / name).read_bytes(), root))


def place(folder: Path, names: Iterable[str], *, root: str) -> None:
    """Write into the group files in `folder` that they lie, or will lie, at `root`."""
    for name in filter(is_group, names):
        (folder / name).write_bytes(placed((folder / name).read_bytes(), root))


def portable_digests(folder: Path, names: Iterable[str], *, root: str) -> dict[str, str]:
    """Each file with the sha256 that it would have in a snapshot."""
    ordered = list(names)
    found = dict(digests(folder, [name for name in ordered if not is_group(name)]))
    for name in filter(is_group, ordered):
        found[name] = hashlib.sha256(portable((folder / name).read_bytes(), root)).hexdigest()
    return found
