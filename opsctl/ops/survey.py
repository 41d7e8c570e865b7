"""What a host has that a configuration may name: Python, GPUs, containers. Asked by one constant script."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.errors import CommandFailed
from opsctl.target.container import NoContainer
from opsctl.target.host import Host
from opsctl.target.target import Target

_LIMIT_S = 150.0
_MARK = "\1"  # begins a row that names a part
# each part may fail on its own: no such program, or nobody who may ask it
SCRIPT = r"""part() { printf '\001%s\n' "$1"; }
part user; id -un
part sudo; sudo -n true && echo yes
part system; . /etc/os-release && echo "$PRETTY_NAME"
part python; python3 -c 'import platform; print(platform.python_version())'
part gpu; timeout 30 nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader,nounits
part docker; timeout 30 docker ps -a --format '{{.Names}}|{{.State}}|{{.Image}}'
part lxc; timeout 30 lxc-ls -f -F NAME,STATE | tail -n +2
part pct; timeout 30 pct list | tail -n +2
part end
"""


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it."""

    index: int
    name: str
    memory_mib: int


@dataclass(frozen=True)
class FoundContainer:
    """A container on the host; `kind` is docker, lxc or pct, `name` what the configuration calls it."""

    kind: str
    name: str
    state: str
    note: str = ""  # its image or host name


@dataclass(frozen=True)
class Survey:
    """What was found; "" or () where there is none or nobody who may ask."""

    user: str
    can_sudo: bool
    system: str
    python: str
    gpus: tuple[Gpu, ...]
    containers: tuple[FoundContainer, ...]


def survey(host: Host) -> Survey:
    """Look at a host; raises TargetError if it cannot be reached."""
    target = Target("host", host, NoContainer())
    answer = target.ask_host(("sh", "-c", SCRIPT), timeout_s=_LIMIT_S)
    if f"{_MARK}end" not in answer.output:
        raise CommandFailed(f"{host.label} did not run a shell script: {answer.errors.strip() or answer.outcome}")
    return parse(answer.output)


def parse(text: str) -> Survey:
    """The survey in the script's output, whose rows are made fit to be shown."""
    parts: dict[str, list[str]] = {}
    for block in text.split(_MARK)[1:]:
        name, *rows = block.splitlines()
        parts[name] = [shown for row in rows if (shown := re.sub(r"[^\x20-\x7e]", "?", row).strip())]

    def first(name: str) -> str:
        return next(iter(parts.get(name, ())), "")

    return Survey(
        user=first("user"),
        can_sudo=first("sudo") == "yes",
        system=first("system"),
        python=first("python"),
        gpus=tuple(gpu for row in parts.get("gpu", ()) if (gpu := _gpu(row))),
        containers=(
            *(FoundContainer("docker", *row.split("|", 2)) for row in parts.get("docker", ()) if row.count("|") >= 2),
            *(_words("lxc", row) for row in parts.get("lxc", ())),
            *(_words("pct", row) for row in parts.get("pct", ()) if row[0].isdigit()),
        ),
    )


def _gpu(row: str) -> Gpu | None:
    found = re.fullmatch(r"(\d+), (.+), (\d+)", row)
    return Gpu(int(found[1]), found[2], int(found[3])) if found else None


def _words(kind: str, row: str) -> FoundContainer:
    """A row of lxc-ls (name, state) or of pct list (number, status, perhaps a lock, name)."""
    name, state, *rest = [*row.split(), "?"]
    return FoundContainer(kind, name, state.lower(), " ".join(rest[:-1]))
