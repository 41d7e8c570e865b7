"""`cache-at-start`: what a run that is about to start finds in its live cache; an empty one gets its snapshot back.

Never touches a cache that holds anything, and never keeps a run from starting: what goes wrong here is a note.
"""

from __future__ import annotations

from opsctl.agent.cache.conditions import compare, machine_conditions, place_of_jobs
from opsctl.agent.cache.known import is_known
from opsctl.agent.cache.live import key_for, listing, live_of, read_warmed
from opsctl.agent.cache.restore import bring_back
from opsctl.agent.cache.snapshots import all_snapshots
from opsctl.agent.session import Call
from opsctl.errors import OpsctlError
from opsctl.formats.listing import some
from opsctl.records.cache import SnapshotRecord, StartCache, Warmed

_SHOWN = 3


def look(call: Call) -> StartCache:
    """The StartCache of request["job"] in request["env"]; request["conditions"] are those of now."""
    call.home.ensure()
    job, has_prewarm = call.request["job"], bool(call.request["has_prewarm"])
    env, uses_env = call.request.get("env", ""), bool(call.request.get("uses_env", True))
    place = place_of_jobs(call.home, env=env, uses_env=uses_env)
    conditions = {**call.request["conditions"], **machine_conditions(place)}
    key = key_for(call.home, env=env, uses_env=uses_env)
    live = live_of(call.home, key)
    if listing(live.root):
        return judge(read_warmed(live).get(job), job, conditions) if has_prewarm else StartCache()
    stand = [one for one in all_snapshots(call.home) if one.key == key.fields]
    record = _trusted(call, job, stand)
    if record is None:
        return StartCache((_none_text(job, stand),) if has_prewarm else ())
    try:
        found = bring_back(call, record, key, replace=False)
    except OpsctlError as error:
        note = f"the compile cache is cold: {record.snapshot_id} was not restored: {error.message}"
        return StartCache((note,))
    restored = f"the compile cache was empty: restored {record.snapshot_id}"
    note = f"{restored} ({found.num_files} files, {found.size_mib:.1f} MiB) in {found.seconds:.1f} s"
    after = judge(read_warmed(live).get(job), job, conditions) if has_prewarm else StartCache()
    return StartCache((note, *after.notes), after.is_warm_expected, record.snapshot_id)


def judge(warmed: Warmed | None, job: str, conditions: dict[str, str]) -> StartCache:
    """Whether a cache that holds something is expected to have everything for this job; pure."""
    if warmed is None:
        return StartCache((f"the compile cache holds nothing warmed for {job}: what is missing is compiled now",))
    changed = compare(conditions, warmed.conditions)
    if not changed:
        return StartCache((), is_warm_expected=True)
    rows = [f"{row.name} ({row.b or 'nothing'} then, {row.a or 'nothing'} now)" for row in changed]
    return StartCache((f"since the compile cache was warmed for {job}, this changed: {some(rows, _SHOWN)}",))


def _trusted(call: Call, job: str, stand: list[SnapshotRecord]) -> SnapshotRecord | None:
    """The newest snapshot that this target trusts, one that was warmed for the job before any other."""
    trusted = [one for one in stand if is_known(call.home, one)]
    warmed = [one for one in trusted if job in one.warmed]
    return next(iter(warmed or trusted), None)


def _none_text(job: str, stand: list[SnapshotRecord]) -> str:
    why = "this target does not trust the snapshot that fits" if stand else "no snapshot fits"
    return f"the compile cache is cold, and {why}: everything is compiled now (`opsctl cache explain --job {job}`)"
