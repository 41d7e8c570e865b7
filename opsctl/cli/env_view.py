"""How environments look as text: rows of a list, what drifted, what a prune came to. Pure; prints nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opsctl.formats.listing import shortened

if TYPE_CHECKING:
    from opsctl.ops.env_adopt import AdoptedSet
    from opsctl.ops.env_diff import EnvDiff, FileChange
    from opsctl.records.env import ArchiveEntry, EnvCheck, EnvEntry, PruneOutcome

_SHOWN_FILES = 8


def check_text(found: EnvCheck) -> str:
    """What drifted, by distribution; of many files of one kind only the first are named."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found.drifts:
        detail = f" ({one.detail})" if one.detail else ""
        groups.setdefault((one.distribution, one.kind), []).append(f"{one.path}{detail}")
    rows: list[str] = []
    for (distribution, kind), files in groups.items():
        owner = distribution or ("the target's environment" if kind == "variable" else "no distribution")
        rows.append(f"{owner}: {len(files)} {kind}")
        rows += [f"  {row}" for row in shortened(files, _SHOWN_FILES)]
    repair = "`opsctl env rebuild` repairs" if found.is_rebuildable else "unset these on the target"
    verdict = "as it was built" if found.is_clean else f"{len(found.drifts)} differences; {repair}"
    how = "every hash" if found.mode == "full" else "sizes and times, hashes where those differ"
    notes = [f"note: {note}" for note in found.notes]
    return "\n".join([*rows, *notes, f"{found.env_id}: {verdict} ({found.num_files} files, {how})"])


def age(moment: float) -> str:
    """How long ago that was, in the one unit that fits.

    >>> age(time.time() - 7200)
    '2 h'
    """
    past_s = max(0.0, time.time() - moment)
    for unit, length_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if past_s >= length_s:
            return f"{past_s / length_s:.0f} {unit}"
    return f"{past_s:.0f} s"


def row(one: EnvEntry) -> tuple[str, ...]:
    """One row of the list."""
    mark = "*" if one.is_active else ""
    size = f"{one.size_mib:.0f} MiB"
    record, used_by = one.record, ", ".join(one.used_by)
    return mark, one.env_id, record.name, record.python, str(len(record.packages)), size, age(record.created), used_by


def archive_row(one: ArchiveEntry) -> tuple[str, ...]:
    """One row of the list of archives."""
    sizes = f"{one.size_mib:.0f} MiB", f"{one.archive_mib:.0f} MiB"
    return one.archive_id, one.path, one.python, str(one.num_files), *sizes, age(one.created), one.operator


def pruned_text(found: PruneOutcome) -> str:
    """What stays and why, and what went."""
    verb = "would remove" if found.is_dry_run else "removed"
    rows = [f"kept     {one.env_id}  {one.name}, {age(one.created)} old, {one.why}" for one in found.kept]
    for gone in found.removed:
        what = "left by a build that was ended" if gone.is_leftover else f"{gone.name}, {age(gone.created)} old"
        rows.append(f"{verb}  {gone.env_id}  {what}, {gone.size_mib:.0f} MiB")
        if gone.unsaved_cache:
            rows.append(f"  its compile cache {gone.unsaved_cache} has no snapshot, and stays")
    frees = "would free" if found.is_dry_run else "freed"
    return "\n".join([*rows, f"{len(found.removed)} {verb}, {frees} about {found.freed_mib:.0f} MiB"])


def diff_text(found: EnvDiff) -> str:
    """What differs, the packages first; of many files of one distribution only the first are named."""
    rows = [f"{name:<8} {change}" for name, change in found.facts.items()]
    rows += [f"added    {name} {version}" for name, version in found.added.items()]
    rows += [f"removed  {name} {version}" for name, version in found.removed.items()]
    rows += [f"changed  {name} {versions}" for name, versions in found.changed.items()]
    rows += [f"rehashed {name}: other files of the same version" for name in found.rehashed]
    groups: dict[str, list[FileChange]] = {}
    for one in found.files:
        groups.setdefault(one.distribution, []).append(one)
    for distribution, files in groups.items():
        rows.append(f"files    {distribution or 'of no distribution'}: {len(files)} differ")
        rows += [f"  {row}" for row in shortened([f"{one.kind:<8} {one.path}" for one in files], _SHOWN_FILES)]
    verdict = "the same" if found.is_same else "they differ"
    return "\n".join([*rows, f"{found.a} -> {found.b}: {verdict}"])


def adopted_text(found: AdoptedSet) -> str:
    """Where the archive lies, what the lock brings back, and what it does not."""
    one = found.adopted
    rows = [f"not pinned: {lost.name} {lost.version}: {lost.why}" for lost in found.unpinned]
    rows += [f"not in the archive: {lost.outside}; `opsctl get` saves it" for lost in found.unpinned if lost.outside]
    rows += [f"not in the lock: {what}" for what in found.changed]
    rows += [f"note: {note}" for note in one.notes]
    size = f"{one.num_files} files, {one.size_mib:.0f} MiB"
    rows.append(f"saved {one.path} in {one.seconds:.0f} s: {size}, {one.archive_mib:.0f} MiB packed\n{one.archive}")
    rows.append(f"`opsctl env restore {one.archive_id}` brings it back as it was")
    total = found.num_pinned + len(found.unpinned)
    rows.append(f"{found.wanted}: {found.num_pinned} of {total} packages are pinned")
    if found.lock:
        rows.append(
            f"{found.lock}: `opsctl env rebuild {found.lock.rpartition('/')[2].removesuffix('.lock')}` builds it"
        )
    return "\n".join(rows)
