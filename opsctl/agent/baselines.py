"""Verb baseline-save: keeps the figures of a good run under a name; and how a later run finds them."""

from __future__ import annotations

import difflib
import re
import time
from pathlib import Path

from opsctl.agent.files import folder_mode, read_record, write_record
from opsctl.agent.home import Home, RunPaths
from opsctl.agent.run_queries import status_of
from opsctl.agent.run_state import find
from opsctl.agent.session import Call
from opsctl.errors import CheckFailed, UsageError
from opsctl.records.baseline import Baseline, SavedBaseline

MIN_ROWS = 20
GOOD = frozenset({"healthy", "finished", "stopped"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def figures_path(paths: RunPaths) -> Path:
    """Where a run's recorder keeps the run's own figures up to date."""
    return paths.folder / "baseline.json"


def _path(home: Home, name: str) -> Path:
    return home.root / "baselines" / f"{name}.json"


def save(call: Call) -> SavedBaseline:
    """Keep the figures of the request's `run` as `name`, in place of older ones; raises CheckFailed for no good run."""
    name = call.request["name"]
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name for a baseline", hint="letters, digits, dot, dash and underscore")
    paths = find(call.home, call.request.get("run", ""))
    found = status_of(paths)
    run_id, verdict = found.run.run_id, found.verdict
    if verdict.verdict not in GOOD:
        why = f"run {run_id} is {verdict.verdict} ({verdict.cause})"
        raise CheckFailed(f"{why}: later runs are not to be measured by it", hint="name a run that went well")
    figures = read_record(Baseline, figures_path(paths))
    if figures is None or figures.num_rows < MIN_ROWS or (figures.step_s is None and figures.tokens_per_s is None):
        seen = figures.num_rows if figures else 0
        hint = f"wait for {MIN_ROWS} of them; a run of an older opsctl has none"
        raise CheckFailed(f"run {run_id} has shown {seen} steps that could be measured", hint=hint)
    record = SavedBaseline(name, run_id, time.time(), call.operator, figures)
    path = _path(call.home, name)
    path.parent.mkdir(mode=folder_mode(call.home.root), exist_ok=True)
    write_record(path, record)
    return record


def good_run(paths: RunPaths, name: str) -> Baseline:
    """The figures that a run of this folder is compared with; all unknown where it names none."""
    return load(Home(paths.folder.parents[1]), name) if name else Baseline()


def load(home: Home, name: str) -> Baseline:
    """The figures kept as `name`; raises CheckFailed that names the nearest one."""
    saved = read_record(SavedBaseline, _path(home, name)) if _NAME.match(name) else None
    if saved is not None:
        return saved.figures
    names = sorted(path.stem for path in (home.root / "baselines").glob("*.json"))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else "`opsctl watch RUN --save-baseline NAME` keeps one of a good run"
    raise CheckFailed(f"there is no baseline {name!r} on this target", hint=hint)
