"""`opsctl cache push`, `pull` and `prune`: snapshots from and to other machines, and what nobody needs any more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.cache import Trust
from opsctl.cli.options import ConfigPath, Json, TargetName, named, workspace
from opsctl.cli.progress import teller

if TYPE_CHECKING:
    from opsctl.records.cache import Exchanged, PruneItem, PruneOutcome


def add_to(cache: typer.Typer) -> typer.Typer:
    """The same noun with these verbs."""
    cache.command()(push)
    cache.command()(pull)
    cache.command()(prune)
    return cache


def push(
    source: Annotated[
        str, typer.Argument(metavar="FILE|ID", callback=named, help="Archive, manifest, or id of a pulled snapshot.")
    ],
    trust: Trust = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Bring a snapshot of this machine to the target, which checks archive and files before it stands there.

    Example: opsctl cache push 20261129-1a2b3c4d-0123456789ab --trust -t other
    """
    from opsctl.ops.cache_exchange import push as bring

    found = bring(workspace(config, target), source, trust=trust, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(_text(found, "pushed"))


def pull(
    snapshot_id: Annotated[
        str, typer.Argument(metavar="ID", callback=named, help="Snapshot on the target, or its beginning.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Folder of this machine; default: the store of `push ID`.")
    ] = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Fetch a snapshot from the target: its archive and its manifest.

    Example: opsctl cache pull 20261129
    """
    from opsctl.ops.cache_exchange import pull as fetch

    found = fetch(workspace(config, target), snapshot_id, folder, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(_text(found, "pulled"))


def _text(found: Exchanged, verb: str) -> str:
    how = f"{verb} in {found.seconds:.1f} s" if found.is_new else "was there already"
    return f"{found.snapshot_id}: {found.archive_mib:.1f} MiB, {how}\n{found.archive}"


def prune(
    keep: Annotated[int, typer.Option("--keep", min=1, help="Snapshots of each key that stay, the newest.")] = 3,
    save: Annotated[
        bool, typer.Option("--save", help="Snapshot what nobody uses and no snapshot holds, then remove it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Remove old snapshots, and saved caches of environments that are gone; nothing that has no other copy goes.

    Example: opsctl cache prune --keep 2 --dry-run
    """
    from opsctl.ops.cache_compare import prune as clear

    found = clear(workspace(config, target), keep=keep, save=save, dry_run=dry_run, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else _show(found)


def _show(found: PruneOutcome) -> None:
    word = "would go" if found.is_dry_run else "removed"
    rows = [_row(one, word) for one in found.removed] + [_row(one, "kept") for one in found.kept]
    ui.table(("", "kind", "name", "size", "why"), rows, name=2)
    freed_mib = sum(one.size_mib for one in found.removed)
    ui.text(f"{len(found.removed)} {word}, {freed_mib:.1f} MiB; {len(found.kept)} kept")


def _row(one: PruneItem, word: str) -> tuple[str, ...]:
    return (word, one.kind, one.name, f"{one.size_mib:.1f} MiB", one.why)
