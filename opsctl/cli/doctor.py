"""`opsctl doctor`: one table of checks a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opsctl import ui
from opsctl.cli.options import ConfigPath, Json, TargetName, workspace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opsctl.records.doctor import Check

ANSWERS = {True: "ok", False: "NO", None: "?"}


Deep = Annotated[
    bool, typer.Option("--deep", help="Also ask the environment's torch in which state it compiles; takes seconds.")
]


def doctor(config: ConfigPath = None, target: TargetName = None, deep: Deep = False, as_json: Json = False) -> None:
    """Check everything that a target needs, and say what to do about what it lacks; exits 1 if a check says no.

    Example: opsctl doctor --deep
    """
    from opsctl.ops.doctor import doctor as examine

    report = examine(workspace(config, target), deep=deep)
    if as_json:
        ui.document({"target": report.target, "label": report.label, "ok": report.is_well, "checks": report.checks})
    else:
        ui.table(("check", "", "found", "what to do"), check_rows(report.checks), title=report.label)
    if not report.is_well:
        raise typer.Exit(1)


def check_rows(checks: Iterable[Check]) -> list[tuple[str, str, str, str]]:
    """The table's rows."""
    return [(check.name, ANSWERS[check.ok], check.found, check.todo) for check in checks]
