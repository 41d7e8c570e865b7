"""Verb run-kernel: kernel rows that a watcher read on the host, for a recorder whose container cannot."""

from __future__ import annotations

import dataclasses
import json

from opsctl.agent.recorder.kernel import HandedRow, handed_path
from opsctl.agent.run_state import find, is_live
from opsctl.agent.session import Call
from opsctl.errors import UsageError

MAX_ROWS, MAX_CHARACTERS = 300, 2000


def hand_on(call: Call) -> int:
    """Append the request's `rows` to what the run's recorder reads; returns how many it took."""
    paths = find(call.home, call.request["run"])
    rows = call.request["rows"]
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise UsageError("kernel rows are texts, each with the process that it names, if that is known")
    if not is_live(paths):
        return 0
    handed = [HandedRow(row["text"][:MAX_CHARACTERS], row.get("pid"), row.get("is_own")) for row in rows[:MAX_ROWS]]
    with handed_path(paths.folder).open("a") as file:
        file.write("".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in handed))
    return len(rows[:MAX_ROWS])


def _is_row(row: object) -> bool:
    """Whether a row of the request has the form of a HandedRow."""
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        return False
    return isinstance(row.get("pid"), (int, type(None))) and isinstance(row.get("is_own"), (bool, type(None)))
