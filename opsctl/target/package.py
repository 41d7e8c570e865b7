"""Packs the agent into one deterministic zipapp: agent, detect, formats, records, errors and libtmux."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import source_hash
from pathlib import Path

from platformdirs import user_cache_path

_ROOT = Path(__file__).resolve().parents[1]
_EPOCH = (1980, 1, 1, 0, 0, 0)
# runs on any Python, so that an old one is told apart from a broken agent
_MAIN = b"""import sys
if sys.version_info < (3, 10):
    sys.stderr.write("opsctl needs Python 3.10 or newer on the target, found %d.%d at %s\\n"
                     % (sys.version_info[0], sys.version_info[1], sys.executable))
    sys.exit(69)
from opsctl.agent.main import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class AgentPackage:
    """The agent's bytes and the sha256 that names them."""

    data: bytes
    sha256: str


def _libtmux_folder() -> Path:
    spec = importlib.util.find_spec("libtmux")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("libtmux is not installed beside opsctl")
    return Path(spec.origin).parent


def _members() -> Iterator[tuple[str, Path]]:
    for name in ("__init__.py", "errors.py"):
        yield f"opsctl/{name}", _ROOT / name
    for package in ("agent", "detect", "formats", "records"):
        for path in sorted((_ROOT / package).rglob("*")):
            if path.suffix in (".py", ".json"):
                yield f"opsctl/{path.relative_to(_ROOT)}", path
    libtmux = _libtmux_folder()
    for path in sorted(libtmux.rglob("*.py")):
        inside = path.relative_to(libtmux)
        if inside.parts[0] not in ("test", "pytest_plugin.py"):
            yield f"libtmux/{inside}", path


def _bytecode(name: str, source: bytes) -> bytes:
    """An unchecked-hash .pyc: a start from it compiles nothing; another Python falls back to the .py."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    header = importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + source_hash(source)
    return header + marshal.dumps(code)


def build(members: list[tuple[str, Path]]) -> bytes:
    """The zipapp of these files; the same files and the same Python give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:

        def add(name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, compression)

        add("__main__.py", _MAIN)
        for name, path in members:
            source = path.read_bytes()
            add(name, source, zipfile.ZIP_DEFLATED)  # read only by another Python than ours
            if name.endswith(".py"):
                add(name + "c", _bytecode(name, source))
    return buffer.getvalue()


def _key(members: list[tuple[str, Path]]) -> str:
    stats = [(name, stat.st_size, stat.st_mtime_ns) for name, path in members for stat in (path.stat(),)]
    return hashlib.sha256(repr((sys.version_info, stats)).encode()).hexdigest()[:16]


@functools.cache
def agent_package() -> AgentPackage:
    """The agent of this opsctl; built once for each change of its sources and kept in the user's cache."""
    members = list(_members())
    cached = user_cache_path("opsctl") / f"agent-{_key(members)}.pyz"
    try:
        data = cached.read_bytes()
    except OSError:  # not there yet, or no cache that we may read
        data = build(members)
        with contextlib.suppress(OSError):  # it saves time only: a full or locked home costs a build a command
            _keep(cached, data)
    return AgentPackage(data, hashlib.sha256(data).hexdigest())


def _keep(cached: Path, data: bytes) -> None:
    part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
    cached.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(data)
        part.replace(cached)
    finally:
        part.unlink(missing_ok=True)
