"""How runs look: as JSON, as rows of a list, as one run's facts. Pure, save for what `print_*` hand to ui."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from opsctl import ui
from opsctl.records.call import to_json

if TYPE_CHECKING:
    from opsctl.ops.runs import LogPiece
    from opsctl.records.events import GpuSample
    from opsctl.records.preflight import PreflightOutcome
    from opsctl.records.run import Attempt, RunRecord, RunStatus


def record_json(record: RunRecord) -> dict[str, Any]:
    """A run that just started."""
    return {"run_id": record.run_id, "name": record.spec.name, "folder": record.folder, "run": to_json(record)}


def status_json(found: RunStatus) -> dict[str, Any]:
    """A run's status; the keys that programs ask for most come first."""
    return {**record_json(found.run), **to_json(found)}


def print_piece(piece: LogPiece, *, as_json: bool) -> None:
    """Print bytes of a log as they are, or with their byte range."""
    if as_json:
        ui.json_line({"start": piece.start, "end": piece.end, "text": piece.data.decode(errors="replace")})
    else:
        ui.raw(piece.data)


def print_verdict(found: RunStatus, *, as_json: bool) -> None:
    """Print what a run came to."""
    if as_json:
        ui.document(status_json(found))
        return
    ui.text(f"run {found.run.run_id} is {_verdict(found)}")
    for row in (*found.verdict.evidence, *_gap(found)):
        ui.text(f"  {row}")


def _verdict(found: RunStatus) -> str:
    verdict = found.verdict
    return verdict.verdict if verdict.cause == "ok" else f"{verdict.verdict} ({verdict.cause})"


def _gap(found: RunStatus) -> tuple[str, ...]:
    """What there is to say about a log that is not whole."""
    missing = found.exit.missing_log_bytes if found.exit else 0
    return (f"the log is not whole: {missing} bytes of output are missing, since its disk was full",) if missing else ()


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _step(found: RunStatus) -> str:
    step, num_steps = found.verdict.step, found.verdict.num_steps
    return "-" if step is None else f"{step}/{num_steps}" if num_steps else str(step)


def row(found: RunStatus) -> tuple[str, ...]:
    """One row of the list."""
    run = found.run
    return (
        run.run_id,
        run.spec.kind,
        found.state,
        _verdict(found) + (", log not whole" if _gap(found) else ""),
        _step(found),
        _time(run.created),
        run.spec.operator,
    )


def facts(found: RunStatus) -> list[tuple[str, str]]:
    """Names and values that tell all about one run; what is not known is left out."""
    from opsctl.target.command import shell_words

    run, spec = found.run, found.run.spec
    facts = [
        ("run", run.run_id),
        ("state", found.state + (f": {found.message}" if found.message else "")),
        ("verdict", _verdict(found)),
        *(("evidence", row) for row in found.verdict.evidence),
        ("advice", found.verdict.advice),
        ("step", _step(found)),
        ("command", shell_words(spec.argv)),
        ("started", f"{_time(run.created)} by {spec.operator or 'somebody'}" + (f", {spec.why}" if spec.why else "")),
        *(("attempt", _attempt(one)) for one in (found.exit.attempts if found.exit else ())),
        ("env", PurePath(spec.env).name),
        ("code", spec.code_origin),
        *(("gpu", _gpu(one)) for one in (found.sample.gpus if found.sample else ())),
        ("processes", _processes(found)),
        *(("note", note) for note in (*spec.notes, *_gap(found))),
        ("log", f"{found.log_bytes} bytes"),
        ("folder", run.folder),
    ]
    return [(name, value) for name, value in facts if value]


def _attempt(attempt: Attempt) -> str:
    how = f"exit {attempt.exit_code}" if attempt.signal is None else f"signal {attempt.signal}"
    step = "" if attempt.last_step is None else f" at step {attempt.last_step}"
    asked = ", as asked" if attempt.stop_requested else ""
    again = ", started again" if attempt.restart else ""
    return f"{attempt.number}: {how} after {attempt.ended - attempt.started:.1f} s{step}{asked}{again}"


def _gpu(gpu: GpuSample) -> str:
    cells = [
        (gpu.utilization_pct, "{:.0f} %"),
        (gpu.used_mib, "{:.0f} MiB"),
        (gpu.power_w, "{:.0f} W"),
        (gpu.temperature_c, "{:.0f} C"),
    ]
    known = [form.format(value) for value, form in cells if value is not None]
    return f"{gpu.index}: {', '.join(known) or gpu.problem or 'nothing known'}"


def _processes(found: RunStatus) -> str:
    process = found.sample.process if found.sample else None
    return f"{process.num_processes}, {process.rss_mib:.0f} MiB" if process else ""


_COUNTS = ("calls", "compiles", "spurious_recompiles", "eager_calls", "limits_hit", "cudagraph_skips")


def preflight_rows(found: PreflightOutcome) -> list[str]:
    """What a preflight saw: a row a topology, what its torch is known to do, the problems, the verdict.

    >>> from opsctl.records.preflight import PreflightOutcome
    >>> preflight_rows(PreflightOutcome("drafter", False, ("2 eager calls",), 61.0, {"topologies": []}, "p-1"))
    ['problem: 2 eager calls', 'drafter: UNSAFE after 61 s, run p-1']
    """
    rows = [_topology_row(one) for one in found.report.get("topologies", ())]
    rows += [f"known of this torch: {text}" for text in found.report.get("known", ())]
    rows += [f"problem: {text}" for text in found.problems]
    return [
        *rows,
        f"{found.job}: {'safe' if found.is_safe else 'UNSAFE'} after {found.seconds:.0f} s, run {found.run_id}",
    ]


def _topology_row(one: dict[str, Any]) -> str:
    raised = ", ".join(f"{count} {name}" for name, count in one.get("exceptions", {}).items()) or "no exceptions"
    counts = ", ".join(f"{one[name]} {name.replace('_', ' ')}" for name in _COUNTS if name in one)
    return f"{'*' if one.get('chosen') else ' '} {one.get('name', '?')}: {counts}, {raised}"
