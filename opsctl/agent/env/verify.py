"""`env-verify`: compares an environment with its manifest. Changes nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.agent.env import drift
from opsctl.agent.env.layout import EnvPaths, find, read_env
from opsctl.agent.env.manifest import Listing, Manifest, listing, read_or_empty
from opsctl.agent.env.steering import library_notes, login_notes, variable_drifts
from opsctl.agent.env.wheels import Distribution, read_distribution
from opsctl.agent.hashing import digests
from opsctl.agent.session import Call
from opsctl.records.env import Drift, EnvCheck, EnvRecord

_PYTHON_LIMIT_S = 60.0  # from a cold network disk under load


def _infos(paths: Iterable[str], site_packages: str) -> set[str]:
    """The .dist-info folders, relative to the environment, that hold any of these files."""
    prefix = f"{site_packages}/"
    inside = (path[len(prefix) :].split("/") for path in paths if path.startswith(prefix))
    return {prefix + parts[0] for parts in inside if len(parts) > 1 and parts[0].endswith(".dist-info")}


def _foreign(
    paths: EnvPaths, site_packages: str, manifest: Manifest, added: tuple[str, ...]
) -> tuple[Distribution, ...]:
    """Distributions whose .dist-info folder came after the build."""
    built = {info for files in manifest.values() for info in _infos(files, site_packages)}
    infos = _infos(added, site_packages) - built
    return tuple(read_distribution(paths.root, paths.root / info) for info in sorted(infos))


def _site_packages(manifest: Manifest) -> str:
    """The folder, relative to the environment, that distributions were installed into."""
    marker = "/site-packages/"
    paths = (path for files in manifest.values() for path in files if marker in path)
    return next((path.partition(marker)[0] + marker[:-1] for path in paths), "lib/site-packages")


def _python_drift(paths: EnvPaths, built_for: EnvRecord) -> tuple[Drift, ...]:
    """Whether the interpreter still starts and is the version that the environment was built for."""
    argv = (str(paths.python), "-I", "-S", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PYTHON_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (Drift("python", "", "bin/python", f"does not start: {error}"),)
    version = done.stdout.strip()
    if done.returncode != 0:
        return (Drift("python", "", "bin/python", f"does not start: {done.stderr.strip()[-200:]}"),)
    if version != built_for.python:
        return (Drift("python", "", "bin/python", f"is {version} now; built for {built_for.python}"),)
    return ()


def check(paths: EnvPaths, *, full: bool) -> EnvCheck:
    """Compare the environment's files with its manifest; `full` hashes every file, on all cores."""
    started = time.monotonic()
    record = read_env(paths.root)
    manifest = read_or_empty(paths.manifest)
    if record is None or not manifest:
        lost = Drift("missing", "", paths.manifest.name, "what was built cannot be read any more")
        return EnvCheck(paths.env_id, "full" if full else "quick", 0, 0.0, (lost,))
    now: Listing = listing(paths.root)
    compared = drift.compare(manifest, now)
    site_packages = _site_packages(manifest)
    edited = drift.really_edited(manifest, compared, lambda asked: dict(digests(paths.root, asked)), full=full)
    foreign = _foreign(paths, site_packages, manifest, compared.added) if compared.added else ()
    found = drift.findings(manifest, compared, edited, foreign, site_packages)
    return EnvCheck(
        env_id=paths.env_id,
        mode="full" if full else "quick",
        num_files=sum(len(files) for files in manifest.values()),
        seconds=round(time.monotonic() - started, 3),
        drifts=_python_drift(paths, record) + found,
        notes=library_notes(os.environ, manifest),
    )


def resolve(call: Call) -> EnvPaths:
    """The environment that a request names by id or by its resolved folder; "" is the active one."""
    wanted = str(call.request.get("env", ""))
    return find(call.home, Path(wanted).name)


def verify(call: Call) -> Any:
    """The EnvCheck of request["env"] ("" = active), with the variables that jobs get from the target.

    request["full"] hashes everything; `overridden` are variables that the job gets another value of; `login` asks
    what a login shell sets, too.
    """
    paths = resolve(call)
    full = bool(call.request.get("full", False))
    if full:
        call.session.progress(f"hashing every file of {paths.env_id}")
    found = check(paths, full=full)
    drifts = variable_drifts(os.environ, overridden=call.request.get("overridden", ()))
    notes = login_notes(os.environ, spawn=call.session.spawn) if call.request.get("login") else ()
    return replace(found, drifts=found.drifts + drifts, notes=found.notes + notes)
