"""`opsctl cache`: warm compile caches, and checked copies of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, named, noun, workspace
from opsctl.cli.progress import teller

if TYPE_CHECKING:
    from opsctl.records.cache import (
        CacheList,
        LiveCache,
        RestoreOutcome,
        Snapshot,
        SnapshotOutcome,
        Warmed,
        WarmthCheck,
    )

cache = noun("cache", "Warm compile caches before a run, save them, and bring them back.")

JobName = Annotated[
    str | None, typer.Option("--job", help="Job whose cache is meant; default: that of the active environment.")
]
PrewarmJob = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="Job of opsctl.yaml; default: the only one with a prewarm.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Take it although this target did not make it: it holds code that runs.")
]

# what a job's own report may hold: torch's two caches, and what was compiled in spite of them
_CACHES = {"fx": "FX graph cache", "aot": "AOTAutograd cache"}
_COUNTS = {"compiler_starts": "compilers started", "new_binaries": "new binaries"}


@cache.command()
def prewarm(
    job: PrewarmJob = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Run a job's prewarm command in its environment, so that a start finds everything compiled.

    Example: opsctl cache prewarm drafter
    """
    from opsctl.ops.cache import prewarm as warm

    found = warm(workspace(config, target), job, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(_warmed_text(found.warmed))


@cache.command()
def verify(
    job: PrewarmJob = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Prove that a start would find everything compiled, on a copy of the live cache; exits 1 if it would not.

    Example: opsctl cache verify drafter
    """
    from opsctl.ops.cache import verify as prove

    found = prove(workspace(config, target), job, on_progress=teller(quiet=as_json))
    ui.document({"is_warm": found.is_warm, "check": found}) if as_json else ui.text(_verified_text(found))
    if not found.is_warm:
        raise typer.Exit(1)


def _verified_text(found: WarmthCheck) -> str:
    cold = f"; cold it took {found.cold_s:.1f} s" if found.cold_s else ""
    state = "warm, nothing was compiled" if found.is_warm else "NOT warm"
    rows = [f"{found.job}: {state}; {found.seconds:.1f} s with {found.num_files} files{cold}"]
    rows += _figures(found.report)
    rows += [f"- {doubt}" for doubt in found.doubts]
    if found.doubts:
        rows.append(
            f"`opsctl cache explain --job {found.job}` says what changed, `opsctl cache prewarm` warms it again"
        )
    return "\n".join(rows)


def _warmed_text(found: Warmed) -> str:
    state = {True: "warm", False: "cold", None: "done"}[found.is_warm]
    cold = f"; cold it took {found.cold_s:.1f} s" if found.cold_s and found.cold_s != found.seconds else ""
    rows = [f"{found.job}: {state} after {found.seconds:.1f} s{cold}"]
    rows += _figures(found.report)
    rows.append(f"{found.num_new_files} new files in {found.cache_dir}")
    return "\n".join(rows)


def _figures(report: dict[str, Any]) -> list[str]:
    """The counters of a report, as a row or none.

    >>> _figures({"fx_hits": 5, "fx_misses": 0, "fx_bypasses": 0, "compiler_starts": 0})
    ['FX graph cache: 5 hits, 0 misses, 0 bypassed; compilers started: 0']
    """
    words = [
        f"{name}: {report[f'{short}_hits']} hits, {report[f'{short}_misses']} misses, "
        f"{report.get(f'{short}_bypasses', 0)} bypassed"
        for short, name in _CACHES.items()
        if f"{short}_hits" in report and f"{short}_misses" in report
    ]
    words += [f"{label}: {report[name]}" for name, label in _COUNTS.items() if name in report]
    return ["; ".join(words)] if words else []


@cache.command()
def snapshot(
    job: JobName = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Save the live cache in a checked archive on the target; one that is saved already is left as it is.

    Example: opsctl cache snapshot
    """
    from opsctl.ops.cache import snapshot as save

    found = save(workspace(config, target), job, on_progress=teller(quiet=as_json))
    ui.document(found) if as_json else ui.text(_saved_text(found))


def _saved_text(found: SnapshotOutcome) -> str:
    one = found.snapshot
    how = f"saved in {found.seconds:.1f} s" if found.is_new else "was saved already, nothing changed since"
    head = f"{one.snapshot_id}: {one.num_files} files, {one.size_mib:.1f} MiB, {how}"
    return "\n".join([head, f"{one.path} ({one.archive_mib:.1f} MiB)", *(f"note: {note}" for note in found.notes)])


@cache.command()
def restore(
    snapshot_id: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", callback=named, help="Snapshot, or its beginning; default: the newest that fits."
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of a live cache that is not empty.")
    ] = False,
    trust: Trust = False,
    job: JobName = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Bring a snapshot back into the live cache, if it fits this environment and machine.

    Example: opsctl cache restore
    """
    from opsctl.ops.cache import restore as bring_back

    found = bring_back(
        workspace(config, target),
        snapshot_id,
        job_name=job,
        replace_live=replace,
        trust=trust,
        on_progress=teller(quiet=as_json),
    )
    ui.document(found) if as_json else ui.text(_restored_text(found))


def _restored_text(found: RestoreOutcome) -> str:
    how = f"restored in {found.seconds:.1f} s" if found.is_new else "the live cache holds it already"
    aside = f"\nwhat lay there and no snapshot has is kept in {found.kept_aside}" if found.kept_aside else ""
    return f"{found.snapshot_id}: {found.num_files} files, {found.size_mib:.1f} MiB, {how}\n{found.path}{aside}"


@cache.command("list")
def list_(
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """List the live caches and the snapshots on the target.

    Example: opsctl cache list
    """
    from opsctl.ops.cache import listing

    found = listing(workspace(config, target))
    ui.document(found) if as_json else _show(found)


def _show(found: CacheList) -> None:
    live = ("", "live cache", "files", "size", "warmed for", "saved as", "made for")
    ui.table(live, [_live_row(one) for one in found.live], name=1)
    snapshots = ("", "snapshot", "files", "size", "archive", "taken", "made for")
    ui.table(snapshots, [_snapshot_row(one) for one in found.snapshots], name=1)
    if not found.live and not found.snapshots:
        ui.say("nothing yet: `opsctl cache prewarm` fills the live cache")


def made_for(key: dict[str, Any]) -> str:
    """A key in a few words.

    >>> made_for({"torch": "2.13.0", "gpus": "H200", "cuda": "13.0", "cpu_isa": "avx2 (ab)"})
    'torch 2.13.0, H200, CUDA 13.0'
    """
    torch = f"torch {key['torch']}" if "torch" in key else "no environment"
    gpus = str(key.get("gpus") or "cpu")
    cuda = f", CUDA {key['cuda']}" if key.get("cuda", "none") != "none" else ""
    return f"{torch}, {gpus}{cuda}"


def _live_row(one: LiveCache) -> tuple[str, ...]:
    warmed = ", ".join(warmed.job for warmed in one.warmed) or "-"
    mark = "*" if one.is_current else ""
    size = f"{one.size_mib:.1f} MiB"
    return (mark, one.key, str(one.num_files), size, warmed, one.snapshot_id or "not saved", made_for(one.fields))


def _snapshot_row(one: Snapshot) -> tuple[str, ...]:
    taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created))
    mark = "*" if one.fits else ""
    sizes = f"{one.size_mib:.1f} MiB", f"{one.archive_mib:.1f} MiB"
    return (mark, one.snapshot_id, str(one.num_files), *sizes, taken, made_for(one.key))
