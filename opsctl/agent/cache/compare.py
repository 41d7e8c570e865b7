"""`cache-diff` and `cache-explain`: two caches, or a cache and what is here now, field by field. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.agent.addresses import meant
from opsctl.agent.cache.conditions import compare, machine_conditions, place_of_jobs
from opsctl.agent.cache.key import CacheKey
from opsctl.agent.cache.live import LivePaths, all_lives, key_for, listing, live_of, read_key, read_warmed
from opsctl.agent.cache.portable import portable_digests
from opsctl.agent.cache.snapshots import all_snapshots, pick
from opsctl.agent.home import Home
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed
from opsctl.records.cache import CacheDiff, CacheExplanation, Difference, SnapshotRecord, Warmed
from opsctl.records.call import from_json

LIVE = "live"


@dataclass(frozen=True)
class Side:
    """One cache as a comparison sees it; `root` is its folder if it is a live one."""

    name: str
    key: dict[str, str]
    warmed: dict[str, Warmed]
    record: SnapshotRecord | None
    root: LivePaths | None

    @property
    def num_files(self) -> int:
        """How many files it holds."""
        return self.record.num_files if self.record else len(listing(self.root.root)) if self.root else 0

    def files(self) -> dict[str, str]:
        """Every file with its hash; a live one's are read for that."""
        if self.record:
            return self.record.files
        assert self.root is not None, "a side is a snapshot or a live cache"
        return portable_digests(self.root.root, listing(self.root.root), root=str(self.root.root))


def _snapshot_side(record: SnapshotRecord) -> Side:
    warmed = {job: from_json(Warmed, one) for job, one in record.warmed.items()}
    return Side(f"snapshot {record.snapshot_id}", record.key, warmed, record, None)


def _live_side(live: LivePaths, key: CacheKey) -> Side:
    return Side(f"live cache {live.root.name}", key.fields, read_warmed(live), None, live)


def side(home: Home, name: str, *, uses_env: bool) -> Side:
    """The cache called `name`: `live` (the job's), the beginning of a live cache's name, or of a snapshot's."""
    if name == LIVE:
        key = key_for(home, uses_env=uses_env)
        return _live_side(live_of(home, key), key)
    lives = {live.root.name: live for live in all_lives(home)}
    if found := meant(name, list(lives), noun="live caches"):
        return _live_side(lives[found], read_key(lives[found]))
    return _snapshot_side(pick(home, name))


def diff(call: Call) -> CacheDiff:
    """How request["a"] and request["b"] differ."""
    uses_env = bool(call.request.get("uses_env", True))
    a, b = (side(call.home, call.request[name], uses_env=uses_env) for name in ("a", "b"))
    files_a, files_b = a.files(), b.files()
    both = files_a.keys() & files_b.keys()
    changed = sorted(name for name in both if files_a[name] != files_b[name])
    return CacheDiff(
        a=a.name,
        b=b.name,
        fields=tuple(row for row in field_rows(a.key, b.key) if row.a != row.b),
        warmed=tuple(_warmed_rows(a.warmed, b.warmed)),
        only_a=tuple(sorted(files_a.keys() - both)),
        only_b=tuple(sorted(files_b.keys() - both)),
        changed=tuple(changed),
        num_same=len(both) - len(changed),
    )


def field_rows(a: dict[str, str], b: dict[str, str]) -> tuple[Difference, ...]:
    """Both keys, field by field, in the order of the first; pure."""
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Difference(name, a.get(name, ""), b.get(name, "")) for name in names)


def _warmed_rows(a: dict[str, Warmed], b: dict[str, Warmed]) -> list[Difference]:
    rows = []
    for job in sorted(a.keys() | b.keys()):
        if job not in a or job not in b:
            rows.append(Difference(job, "warmed" if job in a else "", "warmed" if job in b else ""))
            continue
        differing = compare(a[job].conditions, b[job].conditions)
        rows += [Difference(f"{job}: {row.name}", row.a, row.b) for row in differing]
    return rows


def explain(call: Call) -> CacheExplanation:
    """Why request["cache"] ("" = the live one, or else the newest snapshot) does or does not help request["job"]."""
    home, job = call.home, call.request["job"]
    uses_env = bool(call.request.get("uses_env", True))
    key = key_for(home, uses_env=uses_env)
    found = side(home, call.request["cache"], uses_env=uses_env) if call.request["cache"] else _likely(home, key)
    warmed = found.warmed.get(job)
    now = {**call.request["conditions"], **machine_conditions(place_of_jobs(home, uses_env=uses_env))}
    return CacheExplanation(
        subject=found.name,
        job=job,
        num_files=found.num_files,
        fields=field_rows(key.fields, found.key),
        conditions=compare(now, warmed.conditions) if warmed else (),
        was_warmed=warmed is not None,
    )


def _likely(home: Home, key: CacheKey) -> Side:
    """What somebody wonders about who names nothing: the live cache, or where it is empty the nearest other one."""
    here = _live_side(live_of(home, key), key)
    if here.num_files:
        return here
    others = [_snapshot_side(record) for record in all_snapshots(home)]
    lives = (live for live in all_lives(home) if live != live_of(home, key) and listing(live.root))
    others += [_live_side(live, read_key(live)) for live in lives]
    if not others:
        raise CheckFailed(
            f"the live cache {key.digest} is empty, and there is no other cache on the target",
            hint="`opsctl cache prewarm` fills it, `opsctl cache push` brings a snapshot",
        )
    return min(others, key=lambda other: sum(row.a != row.b for row in field_rows(key.fields, other.key)))
