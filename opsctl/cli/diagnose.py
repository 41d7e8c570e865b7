"""`opsctl diagnose`: one verdict about files that anyone may have; needs no configuration and no target."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl import ui
from opsctl.cli.options import Json
from opsctl.cli.progress import reading
from opsctl.errors import UsageError
from opsctl.records.call import to_json

if TYPE_CHECKING:
    from opsctl.ops.diagnose import Diagnosis
    from opsctl.ops.material import Material

_INDENT = " " * 10


def diagnose(
    path: Annotated[
        Path | None,
        typer.Argument(help="A log, - for one on stdin, a run's folder, or a folder with case.yaml, log.txt, ..."),
    ] = None,
    smi: Annotated[Path | None, typer.Option("--smi", help="What nvidia-smi printed: CSV, table, list or -q.")] = None,
    dmesg: Annotated[Path | None, typer.Option("--dmesg", help="Rows of the kernel's log.")] = None,
    context: Annotated[
        Path | None,
        typer.Option(
            "--context", help="YAML or JSON of what is known besides: proc, exit_code, since_last_line_s, ..."
        ),
    ] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the whole traceback that decided.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a training run, from its log and whatever else was kept of it.

    The exit code is 0 finished or all well, 1 crashed, hung, degraded or eager, 4 unknown, 75 stopped.

    Example: opsctl diagnose train.log --dmesg dmesg.txt --json

    Example: tmux capture-pane -p -S - | opsctl diagnose -
    """
    from opsctl.ops import diagnose as ops
    from opsctl.ops import recorded_run
    from opsctl.ops.watch_state import exit_code

    if path is None and smi is None and dmesg is None and context is None:
        raise UsageError("nothing to diagnose", hint="name a log, for example `opsctl diagnose train.log`")
    with tempfile.NamedTemporaryFile(prefix="opsctl-diagnose-") as spool:
        material = _material(path, smi, dmesg, context, Path(spool.name))
        is_run = path is not None and recorded_run.is_run(path)
        with reading(f"diagnose {path.name or path}" if path else "diagnose") as tell:
            if path is not None and is_run:
                found = ops.diagnose_run(path, on_read=tell)
            else:
                found = ops.diagnose(replace(material, on_read=tell))
        rows = _traceback(material, found) if traceback else None
    if as_json:
        ui.document(diagnosis_json(found, rows))
    else:
        for row in diagnosis_rows(found, rows):
            ui.text(row)
    raise typer.Exit(exit_code(found.verdict.verdict))


def _material(path: Path | None, smi: Path | None, dmesg: Path | None, context: Path | None, spool: Path) -> Material:
    from opsctl.ops import recorded_run
    from opsctl.ops.diagnose import case_in
    from opsctl.ops.material import Material, read_files

    if path is not None and path.is_dir():
        if smi or dmesg or context:
            raise UsageError(
                f"{path} is a folder, which holds its own smi, dmesg and context", hint="name the log in it"
            )
        return Material(path / "train.log") if recorded_run.is_run(path) else case_in(path)
    if path == Path("-"):
        with spool.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        path = spool
    return read_files(path, smi=smi, dmesg=dmesg, context=context)


def _traceback(material: Material, found: Diagnosis) -> tuple[str, ...]:
    from opsctl.ops.traceback import traceback_at

    return traceback_at(material, found.source) if found.source else ()


def diagnosis_json(found: Diagnosis, traceback: tuple[str, ...] | None) -> dict[str, Any]:
    """The one document of `--json`: the verdict's own fields first."""
    more: dict[str, Any] = {name: value for name, value in to_json(found).items() if name != "verdict"}
    return {**to_json(found.verdict), **more, **({} if traceback is None else {"traceback": list(traceback)})}


def diagnosis_rows(found: Diagnosis, traceback: tuple[str, ...] | None) -> list[str]:
    """The same for people: verdict and evidence, what to do, where it stands, from where on it stood."""
    from opsctl.cli.gauges import clean

    verdict, source = found.verdict, found.source
    cause = "" if verdict.cause in ("ok", "") else f" {verdict.cause}"
    rows = [f"{verdict.verdict.upper()}{cause} (confidence {verdict.confidence:.0%}){_progress(found)}"]
    rows += [f"{_INDENT}- {clean(one)}" for one in verdict.evidence]
    rows += [f"{_INDENT}-> {clean(verdict.advice)}"] if verdict.advice else []
    if source is not None:
        rank = f", rank {source.rank}" if source.rank is not None else ""
        where = f", raised at {clean(source.where)}" if source.where else ""
        rows.append(f"{_INDENT}in the log: bytes {source.start}-{source.end}{rank}{where}")
    rows.append(f"{_INDENT}{_when(found)}")
    return rows + [f"{_INDENT}| {clean(row)}" for row in traceback or ()]


def _progress(found: Diagnosis) -> str:
    verdict = found.verdict
    if verdict.step is None:
        return ""
    return f"  step {verdict.step}" + (f"/{verdict.num_steps}" if verdict.num_steps else "")


def _when(found: Diagnosis) -> str:
    """From where on the verdict stood, and how long that took us."""
    decided, many = found.decided, {"row": found.num_rows, "poll": found.num_polls}
    since = {
        "row": f"decided from row {decided.number} of {many['row']} on",
        "poll": f"decided from poll {decided.number} of {many['poll']} on",
        "kernel row": f"decided from kernel row {decided.number} on",
    }.get(decided.kind, "decided only once all was read")
    return f"{since}; read {found.num_rows} rows in {found.took_s:.2f} s"
