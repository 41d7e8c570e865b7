"""Manifests that this target knows: of snapshots that it made, or that somebody told it to trust.

A cache holds code and pickles that run when they are loaded, so that one from elsewhere is as good as a program.
"""

from __future__ import annotations

import hashlib
import json
import time

from opsctl.agent.cache.live import read_json
from opsctl.agent.files import write_record
from opsctl.agent.home import Home
from opsctl.agent.locks import held
from opsctl.errors import CheckFailed
from opsctl.records.cache import SnapshotRecord
from opsctl.records.call import to_json

_LOCK_WAIT_S = 10.0


def manifest_digest(record: SnapshotRecord) -> str:
    """One value for a manifest, with all that it says of archive and files."""
    return hashlib.sha256(json.dumps(to_json(record), sort_keys=True).encode()).hexdigest()


def is_known(home: Home, record: SnapshotRecord) -> bool:
    """Whether this target made this snapshot, or was told to trust it."""
    return manifest_digest(record) in read_json(home.known_manifests)


def remember(home: Home, record: SnapshotRecord, *, operator: str, how: str) -> None:
    """Know this manifest from now on; `how` is "made here" or "trusted"."""
    lock = home.locks / "cache-known.lock"
    with held(lock, operator=operator, why="note of a snapshot's manifest", wait_s=_LOCK_WAIT_S):
        entry = {"snapshot_id": record.snapshot_id, "time": time.time(), "operator": operator, "how": how}
        write_record(home.known_manifests, {**read_json(home.known_manifests), manifest_digest(record): entry})


def ensure_trusted(home: Home, record: SnapshotRecord, *, trust: bool, operator: str) -> None:
    """Raise CheckFailed for a snapshot from elsewhere; with `trust` it is known from now on."""
    if is_known(home, record):
        return
    if not trust:
        raise CheckFailed(
            f"snapshot {record.snapshot_id} was not made on this target, and nobody has vouched for it",
            hint="a cache holds code that runs when it is loaded; --trust takes it, if you know where it comes from",
        )
    remember(home, record, operator=operator, how="trusted")
