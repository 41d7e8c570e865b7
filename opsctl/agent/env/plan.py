"""What a rebuild is asked for, against what stands on the target. Writes nothing but the active link."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from opsctl.agent.env.layout import EnvPaths, active, flip, standing
from opsctl.agent.env.python import Python, find_python
from opsctl.agent.env.verify import check
from opsctl.agent.home import Home
from opsctl.errors import MissingTool
from opsctl.formats.drivers import choose, cuda_of
from opsctl.formats.lockfile import Pin, SetOptions, fingerprint, parse_lock, parse_options
from opsctl.records.env import EnvCheck, EnvOutcome, EnvRecord, EnvRequest

LOCK_NAME = "env-build.lock"


@dataclass(frozen=True)
class Wanted:
    """A request understood: the pins, the Python found for them, and the fingerprint of both."""

    name: str
    pins: tuple[Pin, ...]
    options: SetOptions
    python: Python
    fingerprint: str

    def version_of(self, name: str) -> str:
        """The version that the lock names, "" for none."""
        return next((pin.version for pin in self.pins if pin.name == name), "")


def chosen(asked: list[EnvRequest], driver: str) -> EnvRequest:
    """The one request, or of several the one whose CUDA this driver runs best; raises CheckFailed where none fits."""
    if len(asked) == 1:
        return asked[0]
    cudas = {one.name: cuda_of(parse_lock(one.lock, label=one.label)) for one in asked}
    name = choose(cudas, driver)
    return next(one for one in asked if one.name == name)


def understand(request: EnvRequest, home: Home) -> Wanted:
    """Read the lock and find the Python; raises ConfigError (file and line) or MissingTool."""
    pins = parse_lock(request.lock, label=request.label)
    options = parse_options(request.lock, label=request.label)
    python = find_python(options.python, home.pythons)
    return Wanted(
        name=request.name,
        pins=pins,
        options=options,
        python=python,
        fingerprint=fingerprint(pins, python=python.version, platform=python.platform),
    )


def understood(request: EnvRequest, home: Home) -> Wanted | None:
    """The same, or None where only the Python is missing and may be brought."""
    try:
        return understand(request, home)
    except MissingTool:
        if not request.sources.python_mirror:
            raise
        return None


def _outcome(paths: EnvPaths, record: EnvRecord, found: EnvCheck, *, was_active: bool, started: float) -> EnvOutcome:
    return EnvOutcome(
        env_id=paths.env_id,
        path=str(paths.root),
        is_new=False,
        was_active=was_active,
        record=record,
        num_files=found.num_files,
        seconds=round(time.monotonic() - started, 3),
        notes=found.notes,
    )


def use_standing(
    home: Home, wanted: Wanted, *, known_drifted: Collection[str] = ()
) -> tuple[EnvOutcome | None, tuple[EnvCheck, ...]]:
    """Make an environment of this fingerprint that verifies the active one; those `known_drifted` are passed by.

    Returns it, or None, and what else was found drifted; the active one is tried first, then newer ones.
    """
    started = time.monotonic()
    now = active(home)
    fitting = [
        (paths, record)
        for paths, record in standing(home)
        if record.fingerprint == wanted.fingerprint and paths.env_id not in known_drifted
    ]
    fitting.sort(key=lambda pair: (pair[0] == now, pair[1].created), reverse=True)
    drifted: list[EnvCheck] = []
    for paths, record in fitting:
        found = check(paths, full=False)
        if found.is_clean:
            if paths != now:
                flip(home, paths)
            return _outcome(paths, record, found, was_active=paths == now, started=started), tuple(drifted)
        drifted.append(found)
    return None, tuple(drifted)
