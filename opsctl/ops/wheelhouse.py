"""A folder of wheels on this machine, brought to a target with no way out. Never prints."""

from __future__ import annotations

from pathlib import Path

from opsctl.errors import CheckFailed
from opsctl.formats.listing import some
from opsctl.formats.lockfile import Pin, wheel_pin
from opsctl.ops.jobs import OnProgress, reconnecting
from opsctl.ops.local_file import pieces, sha256_of_file
from opsctl.ops.workspace import Workspace
from opsctl.records.call import to_json
from opsctl.records.env import Sources, Wheel

_SHOWN = 5


def chosen(folder: Path, pins: tuple[Pin, ...], *, label: str) -> tuple[Wheel, ...]:
    """The files of the folder that the lock names; raises CheckFailed naming the packages that none is there for.

    A package with a marker may be left out: it need not apply on the target.
    """
    by_package: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        by_package.setdefault(wheel_pin(path.name), []).append(path)
    found: dict[str, Wheel] = {}
    missing: list[str] = []
    for pin in pins:
        paths = by_package.get((pin.name, pin.version), [])
        wheels = [wheel for path in paths if f"sha256:{(wheel := _wheel(path)).sha256}" in pin.hashes]
        found |= {wheel.name: wheel for wheel in wheels}
        if not wheels and not pin.marker:
            other = f" (another file: {paths[0].name})" if paths else ""
            missing.append(f"{pin.name}=={pin.version}{other}")
    if missing:
        raise CheckFailed(
            f"{folder} lacks what {label} names: {some(missing, _SHOWN)}",
            hint=f"`opsctl env fetch {folder}` fills it, where there is a way to the index",
        )
    return tuple(found.values())


def _wheel(path: Path) -> Wheel:
    return Wheel(path.name, sha256_of_file(path), path.stat().st_size)


def bring(workspace: Workspace, folder: Path, wheels: tuple[Wheel, ...], *, on_progress: OnProgress) -> Sources:
    """Push what the target lacks, each file from where a cut link left it; the result is where a build finds them."""
    request = {"wheels": [to_json(wheel) for wheel in wheels]}
    answer = workspace.client.call("wheels-wanted", request)
    missing = [wheel for wheel in wheels if answer["there"][wheel.name] < wheel.size]
    total = sum(wheel.size for wheel in missing)
    before = 0
    again = reconnecting(on_progress, "the link was lost; what came over is kept, reconnecting")
    for number, wheel in enumerate(missing, start=1):
        head = f"wheels: {number} of {len(missing)}, {wheel.name}"
        again(_bring_one, workspace, folder / wheel.name, wheel, _teller(on_progress, head, before, total))
        before += wheel.size
    return Sources(find_links=(answer["folder"],), is_offline=True)


def _teller(on_progress: OnProgress, head: str, before: int, total: int) -> OnProgress:
    return lambda message: on_progress({"text": head, "done": before + (message.get("done") or 0), "total": total})


def _bring_one(workspace: Workspace, path: Path, wheel: Wheel, on_progress: OnProgress) -> None:
    """Push what the target lacks of one file."""
    there = workspace.client.call("wheels-wanted", {"wheels": [to_json(wheel)]})["there"][wheel.name]
    if there < wheel.size:
        body = {"wheel": to_json(wheel), "start": there}
        workspace.client.call("put-wheel", body, uploads=pieces(path, there), on_progress=on_progress)
