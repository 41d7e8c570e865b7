"""What a hung job's processes do: their Python stacks by py-spy where it is present, saved in the run's folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.files import read_record
from opsctl.agent.home import RunPaths
from opsctl.agent.processes import carrying, stat, words
from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.loop import Loop
from opsctl.records.run import RunRecord
from opsctl.records.verdict import Finding

MAX_TIMES = 5
SPACING_S = 60.0
LIMIT_S = 60.0
_TOTAL_S, _EACH_S = 45.0, 10.0
_MAX_PROCESSES = 64
_ABSENT = (
    "py-spy is not on the target, so that Python's own stacks are missing; `pip install py-spy` into the environment"
)


class Stacks:
    """Takes the stacks of the run's processes in a child, seldom, and reports where they lie."""

    def __init__(
        self, loop: Loop, folder: Path, agent_argv: tuple[str, ...], on_finding: Callable[[Finding], None]
    ) -> None:
        self._folder = folder
        self._argv = (*agent_argv, "job", "stacks", str(folder))
        self._on_finding = on_finding
        self._times = 0
        self._last = float("-inf")
        self.helper = Helper(loop, limit_s=LIMIT_S)

    def take(self, cause: str) -> None:
        """Take them now, unless that was done just before or often enough."""
        now = time.monotonic()
        if self._times >= MAX_TIMES or now - self._last < SPACING_S:
            return
        name = f"stacks-{self._times + 1}.txt"
        if self.helper.start((*self._argv, name), lambda text: self._told(cause, name, text)):
            self._times, self._last = self._times + 1, now

    def _told(self, cause: str, name: str, text: str) -> None:
        moment = round(time.time(), 3)
        try:
            told = json.loads(text)
            summary = (
                f"stacks of {told['num_stacks']} of {told['num_processes']} processes are in {self._folder / name}"
            )
            evidence, advice = tuple(told["innermost"]), str(told["problem"])
        except (ValueError, KeyError, TypeError):
            summary, evidence, advice = f"the stacks could not be taken within {LIMIT_S:g} s", (), ""
        self._on_finding(Finding(moment, cause, "info", summary, evidence, advice))


# --- the child -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dump:
    """One process: what it waits for, and its stacks as py-spy prints them."""

    pid: int
    head: str
    stacks: str = ""
    problem: str = ""

    @property
    def innermost(self) -> str:
        """The first frame of the first thread that is not idle, or of the first one."""
        rows = self.stacks.splitlines()
        threads = [at for at, row in enumerate(rows) if row.startswith("Thread ")]
        active = next((at for at in threads if "(idle)" not in rows[at]), threads[0] if threads else None)
        frame = rows[active + 1].strip() if active is not None and active + 1 < len(rows) else ""
        return f"pid {self.pid}: {frame}" if frame else ""


def main(arguments: list[str]) -> int:
    """`job stacks RUN_FOLDER NAME`: writes the file, prints one JSON object about it."""
    folder, name = Path(arguments[0]), arguments[1]
    record = read_record(RunRecord, RunPaths(folder).record)
    members = carrying(record.run_id)[:_MAX_PROCESSES] if record is not None else ()
    tool = _py_spy(record.spec.env if record is not None else "")
    deadline = time.monotonic() + _TOTAL_S
    dumps = [_dump(pid, tool, deadline) for pid in members]
    part = folder / f"{name}.part"
    part.write_text("\n".join(f"{dump.head}\n{dump.stacks or dump.problem}\n" for dump in dumps))
    part.replace(folder / name)
    problem = _ABSENT if tool is None else next((dump.problem for dump in dumps if dump.problem), "")
    told = {
        "num_processes": len(dumps),
        "num_stacks": sum(bool(dump.stacks) for dump in dumps),
        "innermost": [dump.innermost for dump in dumps if dump.innermost][:8],
        "problem": problem,
    }
    print(json.dumps(told), flush=True)  # noqa: T201 - the recorder reads it
    return 0


def _py_spy(env: str) -> str | None:
    """The py-spy of the run's environment, or of the target."""
    own = Path(env) / "bin" / "py-spy"
    return str(own) if env and own.exists() else shutil.which("py-spy")


def _dump(pid: int, tool: str | None, deadline: float) -> Dump:
    head = _head(pid)
    left_s = min(_EACH_S, deadline - time.monotonic())
    if tool is None:
        return Dump(pid, head, problem=_ABSENT)
    if left_s <= 0:
        return Dump(pid, head, problem="no time was left for this one")
    found = stat(pid)
    # a stopped process cannot be paused once more; the others are, so that their frames are of one moment
    options = ("--nonblocking",) if found is not None and found.state == "T" else ()
    try:
        done = subprocess.run(
            (tool, "dump", *options, "--pid", str(pid)), stdin=subprocess.DEVNULL, capture_output=True, timeout=left_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Dump(pid, head, problem=f"py-spy did not answer: {error}")
    if done.returncode:
        rows = done.stderr.decode(errors="replace").strip().splitlines()
        return Dump(pid, head, problem=f"py-spy: {rows[-1] if rows else done.returncode}")
    return Dump(pid, head, done.stdout.decode(errors="replace"))


def _head(pid: int) -> str:
    """What /proc says: command line, and for each thread its name, state and what it waits for in the kernel."""
    rows = [f"=== pid {pid}: {b' '.join(words(pid)).decode(errors='replace').strip()}"]
    with contextlib.suppress(OSError):  # gone
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            state = _read(task / "stat").rpartition(")")[2].split()[:1]
            wait = _read(task / "wchan").strip()
            rows.append(
                f"thread {task.name} {_read(task / 'comm').strip()}: state {''.join(state)}, waits in {wait or '-'}"
            )
    return "\n".join(rows)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # gone, or not ours to read
        return ""
