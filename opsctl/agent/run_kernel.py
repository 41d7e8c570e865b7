"""Verb run-kernel: kernel rows that a watcher read on the host, for a recorder whose container cannot."""

from __future__ import annotations

import json

from opsctl.agent.recorder.kernel import handed_path
from opsctl.agent.run_state import find, is_live
from opsctl.agent.session import Call
from opsctl.errors import UsageError

MAX_ROWS, MAX_CHARACTERS = 300, 2000


def hand_on(call: Call) -> int:
    """Append the request's `rows` to what the run's recorder reads; returns how many it took."""
    paths = find(call.home, call.request["run"])
    rows = call.request["rows"]
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UsageError("kernel rows are texts")
    if not is_live(paths):
        return 0
    data = "".join(json.dumps(row[:MAX_CHARACTERS]) + "\n" for row in rows[:MAX_ROWS])
    with handed_path(paths.folder).open("a") as file:
        file.write(data)
    return len(rows[:MAX_ROWS])
