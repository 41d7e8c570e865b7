"""The page of `opsctl status`: what stands on each target, as styled text. Pure; prints nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.cli.frame import LABEL, looks
from opsctl.cli.gauges import duration, gib, significant
from opsctl.records.run import RunStatus

if TYPE_CHECKING:
    from opsctl.ops.status import TargetStatus
    from opsctl.records.cache import LiveCache, Warmed

_MAX_RUNS = 8


def page(found: TargetStatus, steps: Sequence[str]) -> RenderableType:
    """Everything about one target, and what to do next."""
    symbol, style = ("\u25cf", "bold green") if not found.problem else ("\u2716", "bold red")
    head = _harmless(Text.assemble((f"{symbol} ", style), (found.label, "bold")))
    rows: list[tuple[str, Text]] = [("machine", _machine(found))] if found.facts else []
    if found.problem:
        rows.append(("problem", Text(found.problem, "red")))
        rows += [("hint", Text(found.hint))] if found.hint else []
        return Group(head, _grid(rows), Text())
    rows += [("env", _env(found)), *(("cache", one) for one in _caches(found)), ("runs", _runs_summary(found))]
    next_rows = [("next", Text(step)) for step in steps]
    return Group(head, _grid(rows), *([_runs(found)] if found.runs else []), _grid(next_rows), Text())


def _harmless(text: Text) -> Text:
    """The text with a question mark for each character that a terminal would act on."""
    text.plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in text.plain)
    return text


def _grid(rows: Sequence[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=LABEL, min_width=9, no_wrap=True)
    grid.add_column()
    last = ""
    for name, text in rows:
        grid.add_row("  " + (name if name != last else ""), _harmless(text))
        last = name
    return grid


def _machine(found: TargetStatus) -> Text:
    facts = found.facts
    parts = [
        f"{facts.get('hostname', '?')}: {facts.get('num_cores', '?')} cores",
        f"{gib(facts['disk_free_mib'])} free" if "disk_free_mib" in facts else "",
        f"Python {facts.get('python', '?')}",
        "" if facts.get("tools", {}).get("tmux") else "no tmux",
        f"answers in {found.reach_s:.1f} s" if found.reach_s is not None else "",
    ]
    return Text(", ".join(filter(None, parts)))


def _env(found: TargetStatus) -> Text:
    active = found.active_env
    others = len(found.envs) - (active is not None)
    more = f"; {others} more" if others else ""
    if active is None:
        return Text(f"none is active{more}")
    record = active.record
    torch = f", torch {record.packages['torch']}" if "torch" in record.packages else ""
    text = Text.assemble((record.name, "bold"), f" {record.fingerprint[:12]}, built {_day(record.created)}{torch}")
    text.append(f", {gib(active.size_mib)}{more}\n")
    return text.append(_check(found))


def _check(found: TargetStatus) -> Text:
    check = found.env_check
    if check is None:
        return Text("not verified", "yellow")
    if not check.is_clean:
        return Text(f"drifted: {len(check.drifts)} differences from what was built", "bold yellow")
    return Text(f"verified just now: {check.num_files:,} files as they were built ({check.seconds:.1f} s)", "green")


def _caches(found: TargetStatus) -> list[Text]:
    live = [_live(one) for one in sorted(found.caches.live, key=lambda one: not one.is_current)]
    saved = found.caches.snapshots
    fitting = sum(one.fits for one in saved)
    text = f"{len(saved)} saved, {fitting} of them for the active environment" if saved else ""
    return [*(live or [Text("cold: nothing compiled yet")]), *([Text(text)] if text else [])]


def _live(cache: LiveCache) -> Text:
    is_warm = any(one.is_warm is not False for one in cache.warmed)
    text = Text("warm" if is_warm else "cold" if not cache.num_files else "filled, warmth not proved")
    text.stylize("green" if is_warm else "yellow")
    text.append(f" {cache.key[:12]}, {cache.num_files:,} files, {gib(cache.size_mib)}", "")
    text.append("" if cache.is_current else ", not of the active environment")
    text.append(f", saved as {cache.snapshot_id}" if cache.snapshot_id else ", not saved" if cache.num_files else "")
    for one in cache.warmed:
        text.append(f"\n{_warmed(one)}", LABEL)
    return text


def _warmed(one: Warmed) -> str:
    cold = f", cold {one.cold_s:.1f} s" if one.cold_s else ""
    return f"{one.job} warmed {_day(one.time)} in {one.seconds:.1f} s{cold}"


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


# --- runs ------------------------------------------------------------------------------------------


def _runs_summary(found: TargetStatus) -> Text:
    from opsctl.ops.status import LIVE_STATES

    if not found.runs:
        return Text("none yet")
    live = sum(one.state in LIVE_STATES for one in found.runs)
    hidden = len(found.runs) - _MAX_RUNS
    more = f", the newest {_MAX_RUNS} shown" if hidden > 0 else ""
    return Text(f"{len(found.runs)}, {live} live{more}")


def _runs(found: TargetStatus) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for _ in range(4):
        table.add_column()
    now = found.facts.get("time", time.time())
    for one in found.runs[:_MAX_RUNS]:
        table.add_row(*map(_harmless, _run(one, now)))
    return table


def _run(found: RunStatus, now: float) -> tuple[Text, ...]:
    verdict, run = found.verdict, found.run
    symbol, style = looks(verdict.verdict)
    cause = "" if verdict.cause in ("ok", "") else f" {verdict.cause.replace('_', ' ')}"
    gpus = f"GPU {','.join(map(str, run.spec.gpus))}" if run.spec.gpus else ""
    return (
        Text(f"    {symbol}", style),
        Text(run.run_id),
        Text.assemble((verdict.verdict.replace("_", " "), style), cause),
        Text(_progress(found)),
        Text(_age(found, now), LABEL),
        Text(gpus),
    )


def _progress(found: RunStatus) -> str:
    verdict = found.verdict
    total = f"/{verdict.num_steps:,}" if verdict.num_steps else ""
    step = f"step {verdict.step:,}{total}" if verdict.step is not None else ""
    loss = f"loss {significant(verdict.loss)}" if verdict.loss is not None else ""
    return "  ".join(filter(None, (step, loss)))


def _age(found: RunStatus, now: float) -> str:
    created = found.run.created
    if not found.exit or not found.exit.attempts:
        return duration(now - created)
    ended = found.exit.attempts[-1].ended
    return f"{duration(ended - created)}, ended {duration(now - ended)} ago"
