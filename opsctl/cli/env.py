"""`opsctl env`: pinned sets, and the environments that are built from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.env_view import check_text, pruned_text, row
from opsctl.cli.options import ConfigPath, Json, TargetName, named, noun, workspace
from opsctl.cli.progress import teller

if TYPE_CHECKING:
    from opsctl.ops.env_lock import LockResult
    from opsctl.ops.env_rebuild import Rebuilt

env = noun("env", "Pin environments, rebuild them, and see that nobody changed them.")

SetName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The pinned set; default: env.name.")]
SetOrAuto = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The pinned set, or auto: the driver chooses; default: env.name.")
]
EnvId = Annotated[
    str, typer.Argument(metavar="[ID]", callback=named, help="Id of an environment, or its beginning; default: active.")
]


@env.command()
def lock(
    name: SetName = None,
    upgrade: Annotated[
        list[str] | None, typer.Option("--upgrade", help="Take the newest version of this package; repeatable.")
    ] = None,
    upgrade_all: Annotated[bool, typer.Option("--upgrade-all", help="Take the newest version of everything.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Write NAME.lock from NAME.in: every distribution with its version and hashes.

    Example: opsctl env lock

    Example: opsctl env lock cpu --upgrade transformers
    """
    from opsctl.ops.env_lock import lock as write_lock

    found = write_lock(workspace(config, target), name, upgrade=tuple(upgrade or ()), upgrade_all=upgrade_all)
    ui.document(found) if as_json else ui.text(_lock_text(found))


def _lock_text(found: LockResult) -> str:
    changes = found.changes
    rows = [f"added    {name} {version}" for name, version in changes.added.items()] if not found.is_new else []
    rows += [f"removed  {name} {version}" for name, version in changes.removed.items()]
    rows += [f"changed  {name} {versions}" for name, versions in changes.changed.items()]
    rows += [f"rehashed {name}: other files of the same version" for name in changes.rehashed]
    what = "written" if found.is_new else f"{len(rows)} changes" if rows else "nothing changed"
    return "\n".join([*rows, f"{found.path}: {found.num_packages} packages, {what}"])


@env.command()
def fetch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder here that gets the files.")],
    name: SetName = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Download the files of NAME.lock for the target's Python and platform into DIR, for `env rebuild --wheelhouse`.

    Example: opsctl env fetch wheels
    """
    from opsctl.ops.env_fetch import fetch as download

    found = download(workspace(config, target), folder, name, on_progress=teller(quiet=as_json))
    if as_json:
        ui.document(found)
        return
    what = f"{found.num_files} files for Python {found.python} on {found.platform}, {found.size_mib:.0f} MiB"
    ui.text(f"{found.folder}: {what}; {found.num_new} of them new")


@env.command()
def rebuild(
    name: SetOrAuto = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(help="Bring the files from this folder, which `env fetch` filled; the target asks no index."),
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Build the environment of NAME.lock on the target, prove it and make it active; one that stands is left as it is.

    Whatever fails leaves the active environment as it was.

    Example: opsctl env rebuild

    Example: opsctl env rebuild --wheelhouse wheels
    """
    from opsctl.ops.env_rebuild import rebuild as build

    found = build(workspace(config, target), name, wheelhouse=wheelhouse, on_progress=teller(quiet=as_json))
    if as_json:
        ui.document(found)
        return
    for note in found.notes:
        ui.say(f"note: {note}")
    ui.text(_rebuilt_text(found))


def _rebuilt_text(found: Rebuilt) -> str:
    outcome = found.outcome
    if outcome.is_new:
        size = f"{len(outcome.record.packages)} packages, {outcome.num_files} files, {outcome.size_mib:.0f} MiB"
        head = f"built {outcome.env_id} in {outcome.seconds:.0f} s: {size}"
    else:
        head = f"{outcome.env_id} stands and verifies ({outcome.num_files} files in {outcome.seconds:.2f} s)"
    proof = outcome.record.proof
    torch = f"\ntorch {proof['torch.version']}, GPUs: {proof['torch.gpus']}" if "torch.version" in proof else ""
    active = "it was active already" if outcome.was_active else "it is active now"
    return f"{head}; {active}{torch}\n{outcome.path}"


@env.command()
def verify(
    env_id: EnvId = "",
    full: Annotated[bool, typer.Option("--full", help="Hash every file, not only those that look changed.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Compare an environment with what was built, file by file; exit code 1 if anything drifted.

    Example: opsctl env verify --full
    """
    from opsctl.ops.env import verify as check

    space, tell = workspace(config, target), teller(quiet=as_json)
    found = check(space, env_id, full=full, asks_login=True, on_progress=tell)
    if as_json:
        ui.document({"is_clean": found.is_clean, "check": found})
    else:
        ui.text(check_text(found))
    if not found.is_clean:
        raise typer.Exit(1)


@env.command("list")
def list_(
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """List the environments on the target, newest first; the active one is marked.

    Example: opsctl env list
    """
    from opsctl.ops.env import listing

    found = listing(workspace(config, target))
    if as_json:
        ui.document(found)
        return
    columns = ("", "id", "set", "python", "packages", "size", "age", "used by")
    ui.table(columns, [row(one) for one in found], name=1)


@env.command()
def activate(
    env_id: Annotated[
        str, typer.Argument(metavar="ID", callback=named, help="Id of an environment, or its beginning.")
    ],
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Make another environment the active one, if it verifies; runs that go on keep theirs.

    Example: opsctl env activate 3f2a9c1b77aa
    """
    from opsctl.ops.env import activate as flip

    found = flip(workspace(config, target), env_id)
    if as_json:
        ui.document(found)
        return
    before = f"; before: {found.before}" if found.before and found.before != found.env_id else ""
    ui.text(f"{found.env_id} is active{before}\n{found.path}")


@env.command()
def prune(
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="How many of the newest stay; default: env.keep.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Remove environments from the target; the active one, the newest, and all in use stay, and every compile cache.

    Example: opsctl env prune --keep 2 --dry-run
    """
    from opsctl.ops.env import prune as remove

    found = remove(workspace(config, target), keep=keep, is_dry_run=dry_run, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(pruned_text(found))
