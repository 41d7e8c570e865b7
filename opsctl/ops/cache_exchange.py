"""Snapshots between a target and this machine, and so between targets: push and pull. Never prints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from platformdirs import user_data_path

from opsctl.errors import FULL, CheckFailed, Disconnected, DiskFull, ProtocolError, Unreachable, UsageError
from opsctl.formats.listing import ambiguous
from opsctl.formats.output import write_output
from opsctl.ops.jobs import OnProgress, unheard
from opsctl.ops.local_file import pieces, sha256_of_file
from opsctl.ops.workspace import Workspace
from opsctl.records.cache import Exchanged

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")

_SUFFIXES = (".tar.zst", ".tar.gz")
_MANIFEST = ".json"
_TRIES = 8  # without a byte of progress, within about half a minute


def store() -> Path:
    """Where pulled snapshots lie on this machine unless a folder is named: data, not a cache that may be cleared."""
    return user_data_path("opsctl") / "snapshots"


@dataclass(frozen=True)
class LocalSnapshot:
    """A manifest and its archive on this machine."""

    record: dict[str, Any]
    archive: Path

    @property
    def snapshot_id(self) -> str:
        return str(self.record.get("snapshot_id", ""))

    @property
    def suffix(self) -> str:
        return next(suffix for suffix in _SUFFIXES if self.archive.name.endswith(suffix))


def pull(
    workspace: Workspace, snapshot_id: str, folder: Path | None = None, *, on_progress: OnProgress = unheard
) -> Exchanged:
    """Fetch a snapshot's archive and manifest into `folder`; a cut link is taken up again where it broke.

    Raises UsageError (no such snapshot), CheckFailed (it arrived damaged), Disconnected (what came is kept).
    """
    started = time.monotonic()
    place = _ensure_folder(folder or store())
    offered = _again(lambda _: workspace.client.call("cache-manifest", {"snapshot": snapshot_id}), on_progress)
    record, archive = offered["record"], place / _plain_name(offered["archive"])
    is_new = not (archive.is_file() and sha256_of_file(archive) == record["archive_sha256"])
    if is_new:
        part = archive.with_name(f".{archive.name}.{record['archive_sha256'][:12]}.part")
        _again(lambda tell: _fetch(workspace, offered, part, tell), on_progress)
        if sha256_of_file(part) != record["archive_sha256"]:
            part.unlink()
            raise CheckFailed(f"{archive.name} arrived damaged; nothing of it was kept", hint="pull it again")
        part.replace(archive)
    manifest = place / f"{_plain_name(record['snapshot_id'])}{_MANIFEST}"
    write_output(manifest, json.dumps(record, indent=1).encode() + b"\n")
    return _exchanged(record, archive, is_new=is_new, started=started)


def _ensure_folder(place: Path) -> Path:
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{place} is no folder", hint="name a folder, or none for the store") from None
    except PermissionError as error:
        raise UsageError(f"cannot make {place}: {error.strerror}", hint="name a folder that you may write") from None
    return place


def _plain_name(name: str) -> str:
    """A name that a target gave, if it stays in its folder."""
    if "/" in name or name.startswith(".") or not name:
        raise ProtocolError(f"the target names its snapshot {name!r}")
    return name


def _exchanged(
    record: dict[str, Any], archive: Path | str, *, is_new: bool, started: float, size: int = 0
) -> Exchanged:
    num_bytes = size or Path(archive).stat().st_size
    seconds = round(time.monotonic() - started, 2)
    return Exchanged(record["snapshot_id"], str(archive), round(num_bytes / 2**20, 2), is_new, seconds)


def _fetch(workspace: Workspace, offered: dict[str, Any], part: Path, on_progress: OnProgress) -> None:
    """Append to `part` what it lacks."""
    done = part.stat().st_size if part.exists() else 0
    request = {"snapshot": offered["record"]["snapshot_id"], "offset": done}
    messages = workspace.client.stream("cache-pull", request)
    try:
        with part.open("ab") as file:
            for message in messages:
                if message["type"] == "record":
                    file.write(message["record"])
                    done += len(message["record"])
                    on_progress({"text": f"pulling {offered['archive']}", "done": done, "total": offered["num_bytes"]})
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(
            f"no space left on this machine for {part.parent}", hint="free space, then pull again: what came is kept"
        ) from None
    finally:
        messages.close()


def push(workspace: Workspace, source: str, *, trust: bool = False, on_progress: OnProgress = unheard) -> Exchanged:
    """Bring a snapshot of this machine, by its file or by its id in the store, to the target, which checks all of it.

    Raises UsageError (no such file), CheckFailed (damaged, or unknown to the target without `trust`), DiskFull.
    """
    started, ours = time.monotonic(), find(source)
    size = ours.archive.stat().st_size
    request = {"record": ours.record, "suffix": ours.suffix, "trust": trust, "num_bytes": size}
    on_progress({"text": f"checking {ours.archive.name}", "done": None, "total": None})
    if sha256_of_file(ours.archive) != ours.record.get("archive_sha256"):
        raise CheckFailed(
            f"{ours.archive} is damaged: its hash is not the one in its manifest", hint="pull it again from its target"
        )
    offer = _again(lambda _: workspace.client.call("cache-offer", request), on_progress)
    if offer["is_there"]:
        return _exchanged(ours.record, offer["archive"], is_new=False, started=started, size=size)
    place = _again(lambda tell: _send(workspace, ours, request, tell), on_progress)
    return _exchanged(ours.record, place, is_new=True, started=started, size=size)


def _send(workspace: Workspace, ours: LocalSnapshot, request: dict[str, Any], on_progress: OnProgress) -> str:
    """Send what the target lacks of the archive; returns where it stands there."""
    offer = workspace.client.call("cache-offer", request)
    if offer["is_there"]:  # the link was cut after the last byte
        return str(offer["archive"])
    offset = min(int(offer["have_bytes"]), int(request["num_bytes"]))
    uploads = pieces(ours.archive, offset)
    answer = workspace.client.call(
        "cache-push", {**request, "offset": offset}, uploads=uploads, on_progress=on_progress
    )
    return str(answer["archive"])


def find(source: str) -> LocalSnapshot:
    """The snapshot that a file (archive or manifest), an id or the beginning of one names; raises UsageError."""
    path = Path(source)
    if path.is_file():
        return _read(path)
    place = store()
    found = sorted(place.glob(f"*{_MANIFEST}")) if place.is_dir() else []
    matches = [one for one in found if one.name.startswith(source) and "/" not in source]
    if len(matches) == 1:
        return _read(matches[0])
    if matches:
        raise ambiguous(source, [one.name.removesuffix(_MANIFEST) for one in matches], noun=f"snapshots in {place}")
    raise UsageError(
        f"there is no file {source!r}, and no such snapshot in {place}",
        hint="`opsctl cache pull ID` from the target that has it; `opsctl cache list` shows what a target has",
    )


def _read(path: Path) -> LocalSnapshot:
    stem = path.name
    for suffix in (*_SUFFIXES, _MANIFEST):
        stem = stem.removesuffix(suffix)
    manifest = path.with_name(stem + _MANIFEST)
    archive = next((one for suffix in _SUFFIXES if (one := path.with_name(stem + suffix)).is_file()), None)
    if archive is None or not manifest.is_file():
        lacking = manifest.name if archive else f"{stem}.tar.zst"
        raise UsageError(
            f"{path} is no snapshot: {lacking} is not beside it", hint="a snapshot is an archive and a manifest"
        )
    try:
        record = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise CheckFailed(f"{manifest} is damaged: {error}", hint="pull the snapshot again") from None
    if not isinstance(record, dict):
        raise CheckFailed(f"{manifest} is no manifest of a snapshot", hint="pull the snapshot again")
    return LocalSnapshot(record, archive)


class _Patience:
    """Counts the lost links since anything was last heard of the transfer."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._failures = 0

    def progress(self, message: dict[str, Any]) -> None:
        """Something came through."""
        self._failures = 0
        self._tell(message)

    def is_over(self, state: tenacity.RetryCallState) -> bool:
        """Whether it is time to give up."""
        self._failures += 1
        return self._failures >= _TRIES

    def lost(self, state: tenacity.RetryCallState) -> None:
        """Tell that the link was lost."""
        self._tell({"text": "the link was lost; what came over is kept, reconnecting", "done": None, "total": None})


def _again(step: Callable[[OnProgress], T], on_progress: OnProgress) -> T:
    """Do a step, once more after each lost link, as long as that helps."""
    import tenacity  # 25 ms that other commands must not pay

    patience = _Patience(on_progress)
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((Disconnected, Unreachable)),
        wait=tenacity.wait_exponential(multiplier=0.2, max=5.0) + tenacity.wait_random(0.0, 0.3),
        stop=patience.is_over,
        before_sleep=patience.lost,
        reraise=True,
    )
    try:
        return again(step, patience.progress)
    except Disconnected as error:
        raise Disconnected(error.message, hint="give the same command again: it goes on where it stopped") from None
