"""Small wheels made on the spot, so that environments can be built without any index, and where large ones lie."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _record_row(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def build_wheel(
    folder: Path, name: str, version: str, *, files: dict[str, bytes] | None = None, requires: tuple[str, ...] = ()
) -> Path:
    """Write `name`-`version`, which brings a module of its name and `files`, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        f"{name.replace('-', '_')}/__init__.py": f'VERSION = "{version}"\n'.encode(),
        f"{name.replace('-', '_')}/inner/__init__.py": b"",
        f"{name.replace('-', '_')}/inner/work.py": b"def work() -> int:\n    return 42\n",
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": _WHEEL.encode(),
    }
    rows = [_record_row(path, data) for path, data in content.items()] + [f"{info}/RECORD,,"]
    content[f"{info}/RECORD"] = "\n".join([*rows, ""]).encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return wheel


def torch_wheels() -> list[Path]:
    """Wheels of torch in the folders that pip or uv would look into here; none where an index has it."""
    folders = f"{os.environ.get('UV_FIND_LINKS', '')} {os.environ.get('PIP_FIND_LINKS', '')}".replace(",", " ").split()
    return [path for folder in dict.fromkeys(folders) for path in Path(folder).glob("torch-*+cpu-cp311-*.whl")]
