"""`opsctl init`: the first opsctl.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl import ui
from opsctl.cli.options import Json
from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.ops.init import Written


def init(
    host: Annotated[str | None, typer.Argument(metavar="[USER@HOST]", help="SSH host to write settings for.")] = None,
    local: Annotated[bool, typer.Option("--local", help="Write the settings for this machine.")] = False,
    docker: Annotated[str | None, typer.Option("--docker", metavar="NAME", help="Docker container on it.")] = None,
    lxc: Annotated[str | None, typer.Option("--lxc", metavar="NAME", help="LXC container on it.")] = None,
    pct: Annotated[int | None, typer.Option("--pct", metavar="ID", min=100, help="Proxmox container on it.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port of its sshd.")] = None,
    key_file: Annotated[Path | None, typer.Option("--key-file", help="Key to log in with.")] = None,
    jump: Annotated[str | None, typer.Option("--jump", help="Hosts on the way, separated by commas.")] = None,
    ssh_config: Annotated[Path | None, typer.Option("--ssh-config", help="Instead of ~/.ssh/config.")] = None,
    accept_new: Annotated[bool, typer.Option("--accept-new", help="Record the key of a host that is new.")] = False,
    as_json: Json = False,
) -> None:
    """Write a complete, commented opsctl.yaml into the current folder; one that stands is kept.

    An SSH host is looked at first: its GPUs and containers are listed in the file.

    Example: opsctl init root@gpu.example.org --docker trainer
    """
    settings = {
        "ssh": host,
        "port": port,
        "key_file": key_file and str(key_file.expanduser().absolute()),
        "jump": jump,
        "ssh_config": ssh_config and str(ssh_config.expanduser().absolute()),
        "host_keys": "accept-new" if accept_new else None,
    }
    section = {name: value for name, value in settings.items() if value is not None}
    container = {name: value for name, value in {"docker": docker, "lxc": lxc, "pct": pct}.items() if value is not None}
    _refuse_nonsense(section, container, local=local)
    _show(_written(section, container), as_json=as_json)


def _refuse_nonsense(host: dict[str, Any], container: dict[str, Any], *, local: bool) -> None:
    if local == ("ssh" in host):
        hint = "`opsctl init --local` is for this machine, `opsctl init USER@HOST` for another"
        raise UsageError("init needs to know for which target", hint=hint)
    if local and (host or container):
        raise UsageError("--local takes no further options", hint="`opsctl init USER@HOST` does")
    if len(container) > 1:
        raise UsageError(f"--{' and --'.join(container)} exclude each other", hint="a target is one container")


def _written(host: dict[str, Any], container: dict[str, Any]) -> Written:
    from opsctl.ops.init import Written, init_local, init_remote

    if not host:
        path, is_new = init_local(Path.cwd())
        return Written(str(path), is_new)
    return init_remote(Path.cwd(), host, container)


def _show(written: Written, *, as_json: bool) -> None:
    if as_json:
        ui.document(written)
        return
    ui.text(f"wrote {written.path}" if written.is_new else f"{written.path} stands; kept as it is")
    if written.survey is not None:
        found = written.survey
        ui.text(f"target {written.target}: {len(found.gpus)} GPUs, {len(found.containers)} containers found there")
        ui.text("next: `opsctl doctor` says what is missing")
