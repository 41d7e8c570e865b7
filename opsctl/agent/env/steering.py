"""Variables that make a job import, or load, something else than its environment holds. Reads folders only."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from opsctl.agent.env.manifest import Manifest
from opsctl.formats.listing import some
from opsctl.records.env import STEERING, VARIABLE, Drift

# what each one does to every Python that inherits it
_FIRM = {
    "PYTHONPATH": "comes before the environment's own packages",
    "PYTHONHOME": "puts another standard library in the place of its own",
    "PYTHONPLATLIBDIR": "moves the folder that packages are looked for in",
    "PYTHONPYCACHEPREFIX": "loads bytecode from another place than beside the sources",
    "LD_PRELOAD": "is loaded into every process before its own libraries",
    "LD_AUDIT": "is loaded into every process before its own libraries",
}
_LIBRARIES = "LD_LIBRARY_PATH"
_NO_SHELLS = ("nologin", "false", "sync")
_SHELL_LIMIT_S = 5.0
_PRINT = "printf '\\0'; env -0"  # what a profile prints comes before the first NUL
_SHOWN = 3


def variable_drifts(environment: Mapping[str, str], *, overridden: Iterable[str] = ()) -> tuple[Drift, ...]:
    """One drift for each variable that reaches a job and changes what it imports; `overridden` do not reach it."""
    reached = {name: value for name, value in environment.items() if value and name not in set(overridden)}
    return tuple(
        Drift(VARIABLE, "", name, f"{reached[name]}: {effect}")
        for name, effect in _FIRM.items()
        if name in reached and _has_effect(name, reached[name])
    )


def _has_effect(name: str, value: str) -> bool:
    return name != "PYTHONPATH" or any(Path(folder).exists() for folder in _folders(value))


def _folders(value: str) -> list[str]:
    return [folder for folder in value.split(os.pathsep) if folder]


def library_notes(environment: Mapping[str, str], manifest: Manifest) -> tuple[str, ...]:
    """A sentence where LD_LIBRARY_PATH leads to libraries that the environment brings too."""
    own = {
        path.rpartition("/")[2]: label
        for label, files in manifest.items()
        for path in files
        if ".so" in path and path.rpartition("/")[2].startswith("lib")
    }
    found: list[str] = []
    for folder in _folders(environment.get(_LIBRARIES, "")):
        with contextlib.suppress(OSError):  # no such folder, or closed to us: the loader passes it by too
            names = sorted(path.name for path in Path(folder).iterdir())
            found += [f"{folder}/{name} ({own[name]})" for name in names if name in own]
    if not found:
        return ()
    return (
        f"{_LIBRARIES} is set on the target: a job may load {some(found, _SHOWN)} instead of the environment's own",
    )


def login_notes(inherited: Mapping[str, str], *, spawn: Callable[..., subprocess.Popen[Any]]) -> tuple[str, ...]:
    """A sentence for each steering variable that only a login shell on the target sets; `spawn` starts that shell."""
    shell = _login_shell()
    found = _environment_of((shell, "-l", "-c", _PRINT), spawn) if shell else {}
    return tuple(
        f"a login shell on the target sets {name} ({found[name]}): what is started there by hand may import something"
        " else; runs of opsctl do not get it"
        for name in STEERING
        if found.get(name) and found[name] != inherited.get(name)
    )


def _login_shell() -> str:
    """The user's shell, "" where there is none to log in to."""
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:  # a container's numeric user has no entry
        return ""
    return "" if Path(shell).name in _NO_SHELLS else shell


def _environment_of(argv: tuple[str, ...], spawn: Callable[..., subprocess.Popen[Any]]) -> dict[str, str]:
    """The variables that a command prints, each behind a NUL; {} where it does not start, or not end in time."""
    try:
        child = spawn(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        output, _ = child.communicate(timeout=_SHELL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):  # a profile that waits for something; the call's end kills it
        return {}
    entries = (entry.partition("=") for entry in output.decode(errors="replace").split("\0")[1:])
    return {name: value for name, is_entry, value in entries if is_entry}
