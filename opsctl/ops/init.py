"""Writes the first opsctl.yaml: for this machine, or for a host that is looked at first. Never overwrites one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from opsctl.config import FILE_NAME, nearest
from opsctl.config_file import load, parse
from opsctl.config_texts import NAME
from opsctl.errors import UsageError
from opsctl.formats.output import output_place, write_output
from opsctl.ops.survey import FoundContainer, Survey, survey
from opsctl.ops.workspace import build_host

_TARGET = re.compile(r"^  here:\n(?P<keys>(?:    \w+: .*\n)+)", re.MULTILINE)
_KEY = re.compile(r"^    (?P<key>\w+): .*?(?P<comment> *#.*)$", re.MULTILINE)
_NUM_SHOWN = 12


@dataclass(frozen=True)
class Written:
    """The file, whether it is new, and what was found on the host."""

    path: str
    is_new: bool
    target: str = ""
    survey: Survey | None = None


def example() -> str:
    """The complete, commented configuration."""
    return resources.files("opsctl").joinpath("opsctl.example.yaml").read_text()


def init_local(folder: Path) -> tuple[Path, bool]:
    """Write opsctl.yaml for this machine into `folder`; returns its path and whether it is new.

    A file that stands and loads is kept; one that does not load raises its ConfigError.
    """
    return _write(folder, example())


def init_remote(folder: Path, host: dict[str, Any], container: dict[str, Any]) -> Written:
    """Look at an SSH host and write opsctl.yaml for it, or for a container on it, into `folder`.

    `host` and `container` are sections as they stand in opsctl.yaml. Raises TargetError if the host cannot be
    reached, UsageError if it has no such container. A file that stands and loads is kept, and nothing is asked.
    """
    if (folder / FILE_NAME).exists():
        path, is_new = _write(folder, "")
        return Written(str(path), is_new)
    asked = {"default_target": "it", "targets": {"it": {"host": host, "container": container or "none"}}}
    found = survey(build_host(parse(_flow(asked), Path("the command line")).targets["it"]))
    _check(container, found, host["ssh"])
    name = target_name(host, container)
    path, is_new = _write(folder, text_for(name, host, container, found))
    return Written(str(path), is_new, name, found)


def _write(folder: Path, text: str) -> tuple[Path, bool]:
    path = folder / FILE_NAME
    if path.exists():
        load(path)
        return path, False
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="run init in your project's folder")
    parse(text, path)
    write_output(output_place(path), text.encode())
    return path, True


def _check(container: dict[str, Any], found: Survey, where: str) -> None:
    """Raise UsageError if the host lists containers of this kind, and not this one."""
    for kind, name in container.items():
        known = [one.name for one in found.containers if one.kind == kind]
        if known and str(name) not in known:
            raise UsageError(f"no {kind} container {name} on {where}", hint=nearest(str(name), known))


def target_name(host: dict[str, Any], container: dict[str, Any]) -> str:
    """A name for the target: the container's, or the host's first one.

    >>> target_name({"ssh": "root@gpu7.example.org"}, {}), target_name({"ssh": "box"}, {"pct": 200})
    ('gpu7', 'pct200')
    """
    for kind, name in container.items():
        return f"pct{name}" if kind == "pct" else str(name)
    label = str(host["ssh"]).rpartition("@")[2]
    name = label if re.fullmatch(r"[\d.]+", label) else label.split(".")[0]
    return name if re.fullmatch(NAME, name) else "gpu"


def text_for(name: str, host: dict[str, Any], container: dict[str, Any], found: Survey) -> str:
    """The example with this target instead of the local one, and what was found as comments."""
    needs_root = set(container) & {"lxc", "pct"} and found.user != "root"
    section = {
        "host": host,
        "container": container or "none",
        "home": "~/.opsctl",
        "python": "python3",
        "become": ["sudo", "-n"] if needs_root else [],
    }

    def written(block: re.Match[str]) -> str:
        keys = _KEY.sub(lambda row: f"    {row['key']}: {_flow(section[row['key']])}{row['comment']}", block["keys"])
        return "".join(f"{row}\n" for row in _found_rows(found)) + f"  {_flow(name)}:\n{keys}"

    text = _TARGET.sub(written, example(), count=1)
    return text.replace("default_target: here", f"default_target: {_flow(name)}", 1)


def _flow(value: Any) -> str:
    """A value as YAML in one row.

    >>> _flow({"ssh": "box", "port": 22}), _flow("7")
    ('{ssh: box, port: 22}', "'7'")
    """
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("...\n").strip()


def _found_rows(found: Survey) -> Iterator[str]:
    yield f"  # Found: {found.system or 'an unknown system'}, user {found.user}, Python {found.python or 'missing'}"
    for gpu in found.gpus:
        yield f"  # GPU {gpu.index}: {gpu.name}, {gpu.memory_mib} MiB"
    if not found.gpus:
        yield "  # GPUs: none that nvidia-smi shows to this user"
    for one in found.containers[:_NUM_SHOWN]:
        yield f"  # container: {{{one.kind}: {one.name}}}  {_state(one)}"
    if len(found.containers) > _NUM_SHOWN:
        yield f"  # and {len(found.containers) - _NUM_SHOWN} containers more"


def _state(one: FoundContainer) -> str:
    return f"({one.state}, {one.note})" if one.note else f"({one.state})"
