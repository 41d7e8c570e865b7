"""`env-adopt`: archives an environment made by hand as it is, and tells what it consists of. Changes nothing in it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from pathlib import Path
from typing import Any

from opsctl.agent import jobs
from opsctl.agent.cache.archive import gzip_codec, zstd_codec
from opsctl.agent.cache.snapshots import pythons
from opsctl.agent.env import adopt_look
from opsctl.agent.env.adopt_archive import FOLDER, Tree, pack, tree
from opsctl.agent.env.layout import EnvPaths
from opsctl.agent.files import folder_mode, fsync_folder, write_record
from opsctl.agent.hashing import digest
from opsctl.agent.home import Home
from opsctl.agent.job_start import start_job
from opsctl.agent.main import agent_argv
from opsctl.agent.session import Call
from opsctl.errors import Busy, DiskFull
from opsctl.records.env import Adopted, AdoptedArchive
from opsctl.records.run import RunSpec

RUN_NAME = "env-adopt"
_COMPRESSED_SHARE = 0.2  # no environment gets smaller than that


def adopt(call: Call) -> Any:
    """Start the job that adopts the venv at request["path"]: {"run": RunRecord}; raises UsageError for all else."""
    call.home.ensure()
    root = adopt_look.venv_at(str(call.request["path"]), call.home)
    EnvPaths(root).site_packages()  # what has none, or several, is told before anything is started
    argv = (*agent_argv(), "job", "env-adopt", str(call.home.root), str(root), call.operator)
    spec = RunSpec(RUN_NAME, argv, kind="adopt", operator=call.operator, why=f"env adopt of {root}")
    return {"run": start_job(call, spec)}


def main(arguments: list[str]) -> int:
    """`AGENT job env-adopt HOME PATH OPERATOR`."""
    home, root, operator = arguments
    return jobs.run(lambda progress: take(Home.at(home), Path(root), progress, operator=operator), folder=Path.cwd())


def take(home: Home, root: Path, progress: jobs.Progress, *, operator: str) -> Adopted:
    """Archive the environment and read it; raises Busy if somebody installs into it meanwhile, or DiskFull."""
    started = time.monotonic()
    progress.phase("look", str(root))
    before = tree(root)
    _ensure_room(home, before)
    python, notes = adopt_look.python_of(root)
    archive, record = _save(home, root, before, python, progress, operator=operator)
    progress.phase("read", "what it consists of")
    found, loose = adopt_look.look(root, before, record.files)
    skipped = [f"{path} is no file, folder or link, and is not archived" for path in before.skipped]
    libc, version = platform.libc_ver()
    return Adopted(
        archive_id=record.archive_id,
        path=str(root),
        archive=str(archive),
        archive_mib=round(archive.stat().st_size / 2**20, 1),
        num_files=record.num_files,
        size_mib=record.size_mib,
        seconds=round(time.monotonic() - started, 1),
        python=python,
        machine=platform.machine(),
        glibc=version if libc == "glibc" else "",
        distributions=found,
        loose=adopt_look.shown(loose),
        outside=adopt_look.outside(root),
        notes=(*notes, *skipped),
    )


def _ensure_room(home: Home, found: Tree) -> None:
    needed_mib, free_mib = found.num_bytes * _COMPRESSED_SHARE / 2**20, shutil.disk_usage(home.root).free / 2**20
    if free_mib < needed_mib:
        raise DiskFull(
            f"the archive will need {needed_mib:,.0f} MiB or more, and {home.root} has {free_mib:,.0f} MiB free",
            hint="free space there, or move `home` of the target to a larger disk; the environment is as it was",
        )


def _save(
    home: Home, root: Path, before: Tree, python: str, progress: jobs.Progress, *, operator: str
) -> tuple[Path, AdoptedArchive]:
    """Write the archive aside, then the record, then put the archive in its place, which makes it stand."""
    home.adopted.mkdir(mode=folder_mode(home.root), exist_ok=True)
    for leftover in home.adopted.glob(".*.part"):  # of a job that was ended: only one works at a time
        leftover.unlink()
    now = time.time()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.") or "env"
    archive_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}"
    codec = zstd_codec((str(root / "bin" / "python"), *pythons(home))) or gzip_codec()
    archive = home.adopted / f"{archive_id}{codec.suffix}"
    part = archive.with_name(f".{archive.name}.{os.getpid()}.part")

    def told(done: int, total: int) -> None:
        done_mib, total_mib = done / 2**20, total / 2**20
        progress.phase("archive", f"{total_mib:.0f} MiB", done=round(done_mib, 1), total=round(total_mib, 1))

    try:
        files = pack(root, before, part, codec, told=told)
        if not tree(root).same_as(before):
            raise Busy(
                f"something changed in {root} while it was archived", hint="try again when nothing installs there"
            )
        record = AdoptedArchive(
            archive_id=archive_id,
            path=str(root),
            created=now,
            operator=operator,
            python=python,
            archive_sha256=digest(part),
            num_files=sum(1 for value in files.values() if value != FOLDER),
            size_mib=round(before.num_bytes / 2**20, 1),
            files=files,
        )
        write_record(record_path(home, archive_id), record)
        part.replace(archive)
        fsync_folder(home.adopted)
    finally:
        part.unlink(missing_ok=True)
    return archive, record


def record_path(home: Home, archive_id: str) -> Path:
    """Where the manifest of this archive lies."""
    return home.adopted / f"{archive_id}.json"
