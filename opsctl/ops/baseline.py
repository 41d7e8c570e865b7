"""Keeps the figures of a good run, to compare later ones with. Never prints."""

from __future__ import annotations

from opsctl.ops.workspace import Workspace
from opsctl.records.baseline import SavedBaseline
from opsctl.records.call import from_json


def save(workspace: Workspace, name: str, run: str = "") -> SavedBaseline:
    """Keep a run's figures on the target as `name`; raises CheckFailed for a run that is no good one."""
    return from_json(SavedBaseline, workspace.client.call("baseline-save", {"name": name, "run": run}))
