"""`opsctl cache diff` and `cache explain`: how caches differ, and why one does not help here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.cache import JobName
from opsctl.cli.options import ConfigPath, Json, TargetName, named, workspace
from opsctl.formats.listing import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opsctl.records.cache import CacheDiff, CacheExplanation, Difference

_SHOWN = 20
# what a field of the key means for what lies in a cache
_MEANINGS = {
    "torch": "torch's own keys hold its version: nothing would be found",
    "torch_git": "torch's own keys hold a hash of its sources",
    "triton": "kernels are Triton's, and its version is in their keys",
    "cuda": "kernels are built for one CUDA",
    "gpus": "kernels are built and tuned for one model of GPU",
    "python_abi": "C++ code is linked against one Python",
    "cpu_isa": "C++ code is built for this very CPU, and may crash on another",
    "env": "jobs without an environment bring a torch that opsctl does not know",
}


def add_to(cache: typer.Typer) -> typer.Typer:
    """The same noun with these two verbs."""
    cache.command()(diff)
    cache.command()(explain)
    return cache


def diff(
    a: Annotated[
        str, typer.Argument(metavar="A", callback=named, help="`live`, a live cache or a snapshot, or its beginning.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", callback=named, help="The other one.")],
    job: JobName = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Compare two caches, live ones or snapshots: keys field by field, files by content; exits 1 if they differ.

    Example: opsctl cache diff live 20261129
    """
    from opsctl.ops.cache_compare import diff as compare

    found = compare(workspace(config, target), a, b, job_name=job)
    if as_json:
        ui.document({"is_equal": found.is_equal, "diff": found})
    else:
        ui.text(f"A: {found.a}\nB: {found.b}\n{diff_text(found)}")
    if not found.is_equal:
        raise typer.Exit(1)


def diff_text(found: CacheDiff) -> str:
    """What differs, in rows."""
    rows = [_row(one) for one in found.fields] + [f"warmed for {_row(one)}" for one in found.warmed]
    for title, names in (("only in A", found.only_a), ("only in B", found.only_b), ("changed", found.changed)):
        rows += [f"{title}: {name}" for name in shortened(names, _SHOWN)]
    counts = f"{len(found.only_a)} only in A, {len(found.only_b)} only in B, {len(found.changed)} changed"
    return "\n".join([*rows, f"{found.num_same} files are the same, {counts}"])


def _row(one: Difference) -> str:
    return f"{one.name}: {one.a or 'nothing'} | {one.b or 'nothing'}"


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[CACHE]", callback=named, help="Snapshot or live cache, or its beginning; default: the likely one."
        ),
    ] = "",
    job: JobName = None,
    config: ConfigPath = None,
    target: TargetName = None,
    as_json: Json = False,
) -> None:
    """Say field by field why a cache does or does not match this environment, machine and recipe; exits 1 if not.

    Example: opsctl cache explain
    """
    from opsctl.ops.cache_compare import explain as compare

    found = compare(workspace(config, target), name, job_name=job)
    if as_json:
        ui.document({"matches": found.matches, "fits": found.fits, "explanation": found})
    else:
        ui.table(("field", "", "here", "made for", "why it matters"), field_rows(found.fields), title=found.subject)
        ui.text(verdict_text(found))
    if not found.matches:
        raise typer.Exit(1)


def field_rows(fields: Iterable[Difference]) -> list[tuple[str, ...]]:
    """The key's rows; the meaning is told where it matters."""
    rows: list[tuple[str, ...]] = []
    for one in fields:
        is_same = one.a == one.b
        meaning = "" if is_same else _MEANINGS.get(one.name, "")
        rows.append((one.name, "ok" if is_same else "NO", one.a or "nothing", one.b or "nothing", meaning))
    return rows


def verdict_text(found: CacheExplanation) -> str:
    """What the comparison amounts to, and what to do."""
    if not found.fits:
        return "it does not fit: nothing in it can be used here; `opsctl cache prewarm` compiles what is needed"
    if not found.num_files:
        return "it would fit, but it is empty: `opsctl cache restore` or `opsctl cache prewarm` fills it"
    if not found.job:
        return "it fits this environment and machine; --job compares the recipe too"
    if not found.was_warmed:
        return f"it fits, but was never warmed for {found.job}: `opsctl cache prewarm {found.job}`"
    if not found.conditions:
        return f"it fits, and was warmed for {found.job} as it is now; `opsctl cache verify {found.job}` proves it"
    rows = [f"it fits, but since it was warmed for {found.job} this changed (now | then):"]
    rows += [f"- {row}" for row in shortened([_row(one) for one in found.conditions], _SHOWN)]
    return "\n".join([*rows, f"whether that matters, `opsctl cache verify {found.job}` tells"])
