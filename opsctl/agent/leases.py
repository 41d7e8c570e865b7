"""Which run holds which GPU: one file a GPU and run, valid while the run lives, whoever died meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from opsctl.agent.files import read_record, write_record
from opsctl.agent.home import Home
from opsctl.agent.locks import describe
from opsctl.agent.processes import is_alive
from opsctl.errors import Busy
from opsctl.records.events import GpuSample
from opsctl.records.process import LockOwner

FOREIGN_LIMIT_MIB = 500.0
IsLive = Callable[[str], bool]


def _lease(folder: Path, uuid: str, run_id: str) -> Path:
    return folder / f"gpu-{uuid}.{run_id}.lease"


def _found(home: Home, uuid: str) -> Iterator[tuple[str, LockOwner]]:
    """The runs that have a lease of a GPU, dead ones among them."""
    for path in sorted(home.locks.glob(f"gpu-{uuid}.*.lease")):
        owner = read_record(LockOwner, path)
        if owner is not None:
            yield path.name.removeprefix(f"gpu-{uuid}.").removesuffix(".lease"), owner


def holders(home: Home, uuid: str, is_live: IsLive) -> Iterator[tuple[str, LockOwner]]:
    """The runs that hold a GPU and who started them."""
    for run_id, owner in _found(home, uuid):
        if is_live(run_id) or is_alive(owner.process):
            yield run_id, owner


def clear_dead(home: Home, gpus: tuple[GpuSample, ...], is_live: IsLive) -> tuple[str, ...]:
    """Take away the leases that dead runs left on these GPUs; a sentence on each."""
    notes = []
    for gpu in gpus:
        for run_id, owner in list(_found(home, gpu.uuid)):
            if not is_live(run_id) and not is_alive(owner.process):
                _lease(home.locks, gpu.uuid, run_id).unlink(missing_ok=True)
                notes.append(f"took over GPU {gpu.index}, left by a run that died: {describe(owner)}")
    return tuple(notes)


def refuse_taken(home: Home, gpus: tuple[GpuSample, ...], is_live: IsLive) -> None:
    """Raise Busy, saying who, since when and what for, if a run or a stranger works on one of the GPUs."""
    for gpu in gpus:
        for run_id, owner in holders(home, gpu.uuid, is_live):
            since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(owner.since))
            raise Busy(
                f"GPU {gpu.index} is held by run {run_id} of {owner.operator} since {since}",
                hint="stop that run, choose other GPUs, or add --share",
            )
        if gpu.used_mib is not None and gpu.used_mib > FOREIGN_LIMIT_MIB:
            raise Busy(
                f"GPU {gpu.index} holds {gpu.used_mib:.0f} MiB of a process that is no run of opsctl",
                hint="`nvidia-smi` on the target names the process; choose other GPUs, or add --share",
            )


def take(home: Home, gpus: tuple[GpuSample, ...], run_id: str, owner: LockOwner) -> None:
    """Note that a run holds these GPUs."""
    for gpu in gpus:
        write_record(_lease(home.locks, gpu.uuid, run_id), owner)


def release(home: Home, run_id: str) -> None:
    """Give back all GPUs of a run."""
    for path in home.locks.glob(f"gpu-*.{run_id}.lease"):
        path.unlink(missing_ok=True)
