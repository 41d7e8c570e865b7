"""Wheels that the operator's side brings to a target with no way out; each is known by its hash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from opsctl.agent.files import folder_mode, fsync_folder
from opsctl.agent.hashing import digest
from opsctl.agent.locks import FROZEN_CLIENT_WAIT_S, held
from opsctl.agent.session import Call
from opsctl.agent.uploads import receive
from opsctl.errors import CommandFailed, DiskFull, UsageError
from opsctl.records.call import from_json
from opsctl.records.env import Wheel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def _checked(data: dict[str, Any]) -> Wheel:
    wheel = from_json(Wheel, data)
    if not _NAME.match(wheel.name) or not _SHA256.match(wheel.sha256):
        raise UsageError(f"not the name and hash of a wheel: {wheel.name!r}")
    return wheel


def _part(folder: Path, wheel: Wheel) -> Path:
    """Where a wheel grows; by its hash, so that what came before a link was cut is of use."""
    return folder / f".{wheel.sha256}.part"


def _num_there(folder: Path, wheel: Wheel) -> int:
    """How many of its bytes are there; all of them only if they are the right ones."""
    path, part = folder / wheel.name, _part(folder, wheel)
    if path.is_file() and path.stat().st_size == wheel.size and digest(path) == wheel.sha256:
        return wheel.size
    return min(part.stat().st_size, wheel.size - 1) if part.is_file() else 0


def wanted(call: Call) -> Any:
    """How much of each of request["wheels"] is there, and in which folder: {"folder", "there": {name: n}}."""
    call.home.ensure()
    folder = call.home.wheelhouse
    folder.mkdir(mode=folder_mode(call.home.root), exist_ok=True)
    wheels = [_checked(one) for one in call.request["wheels"]]
    return {"folder": str(folder), "there": {one.name: _num_there(folder, one) for one in wheels}}


def put(call: Call) -> Any:
    """Store the bytes of request["wheel"] from request["start"] on; raises CommandFailed if the hash differs."""
    wheel, start = _checked(call.request["wheel"]), int(call.request["start"])
    folder = call.home.wheelhouse
    part = _part(folder, wheel)
    lock, why = call.home.locks / "wheelhouse.lock", f"bringing {wheel.name}"
    with held(lock, operator=call.operator, why=why, wait_s=FROZEN_CLIENT_WAIT_S):
        if _num_there(folder, wheel) == wheel.size:
            return {"path": str(folder / wheel.name)}  # another client was quicker
        _receive(call, part, wheel, start)
        if (found := digest(part)) != wheel.sha256:
            part.unlink()
            raise CommandFailed(f"{wheel.name} arrived with hash {found} instead of {wheel.sha256}", hint="try again")
        part.replace(folder / wheel.name)
        fsync_folder(folder)
    return {"path": str(folder / wheel.name)}


def _receive(call: Call, part: Path, wheel: Wheel, start: int) -> None:
    try:
        receive(call, part, f"bringing {wheel.name}", start=start, total=wheel.size)
    except ConnectionError:  # the link was cut, and not the disk: what came is of use
        raise
    except OSError as error:
        part.unlink(missing_ok=True)  # what lies there is of no use without room for the rest
        raise DiskFull(
            f"{wheel.name} ({wheel.size / 2**20:,.0f} MiB) cannot be stored in {part.parent}: {error.strerror}",
            hint="free space there, or move `home` of the target to a larger disk",
        ) from None
