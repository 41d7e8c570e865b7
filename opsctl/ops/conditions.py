"""Under which conditions a job compiles, as far as this side knows: its prewarm's words, recipe values and sources.

They are kept with what a prewarm left, so that `cache explain` can say what changed since. Reads the project only.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opsctl.ops.workspace import Workspace

if TYPE_CHECKING:
    from opsctl.config import JobConfig

_CODE = "{code}/"
_MAX_RECIPE_BYTES = 1 << 20
# variables that steer what torch compiles, or how
_STEERING = ("TORCH", "TRITON", "OMP_", "MKL_", "ATEN_", "CUDA_", "CXX", "CC")


def conditions(workspace: Workspace, job: JobConfig) -> dict[str, str]:
    """What the job's prewarm depends on, one name a value."""
    found = {"command": " ".join(job.prewarm).replace("{", "<").replace("}", ">")}
    found |= {f"variable {name}": text for name, text in job.environment.items() if name.startswith(_STEERING)}
    for word in job.prewarm:
        name = word.removeprefix(_CODE)
        is_recipe = word.startswith(_CODE) and not name.endswith(".py")  # programs count as sources
        if is_recipe and (workspace.folder / name).is_file():
            found |= dict(recipe_values(name, (workspace.folder / name).read_bytes()))
    return found | (_sources(workspace) if job.code else {})


def recipe_values(name: str, data: bytes) -> Iterator[tuple[str, str]]:
    """A recipe's values by their dotted names; of a file that holds no mapping, its hash.

    >>> dict(recipe_values("a.yaml", b"data: {rows: 4}  # a comment"))
    {'a.yaml: data.rows': '4'}
    """
    import yaml  # 20 ms that only a command with a recipe pays

    values: Any = None
    if name.endswith((".yaml", ".yml", ".json")) and len(data) <= _MAX_RECIPE_BYTES:
        try:
            values = yaml.safe_load(data)
        except yaml.YAMLError:  # the trainer will say what is wrong with it; here it is a file like any other
            values = None
    if not isinstance(values, dict):
        yield name, _short(data)
        return
    yield from ((f"{name}: {path}", text) for path, text in _flat(values, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _sources(workspace: Workspace) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(workspace.sources)) as archive:
        found = {one.name: archive.extractfile(one) for one in archive if one.name.endswith(".py")}
        return {f"source {name}": source_digest(file.read()) for name, file in found.items() if file is not None}


def source_digest(data: bytes) -> str:
    """One value for what a Python file means: comments and layout do not count.

    >>> source_digest(b"x = 1  # one") == source_digest(b"x=1")
    True
    """
    try:
        return _short(ast.dump(ast.parse(data)).encode())
    except (SyntaxError, ValueError):
        return _short(data)
