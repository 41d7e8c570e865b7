"""Runs that a test starts through the installed command, and their end with the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opsctl.agent.processes import carrying
from tests.support.until import until

JOBS = Path(__file__).parent / "jobs"
COMMAND = str(Path(sys.executable).with_name("opsctl"))


class Runs:
    """The runs of one project folder, on this machine in the test's own home."""

    def __init__(self, opsctl: Callable[..., Any], project: Path, home: Path) -> None:
        self.project = project
        self.folder = home / ".opsctl" / "runs"
        self._opsctl = opsctl

    def start(self, job: str, *words: str, settings: dict[str, Any] | None = None, **environment: str) -> str:
        """Start a job of tests/support/jobs by its name; returns the run's id."""
        command = [sys.executable, str(JOBS / f"{job}.py"), *words]
        one = {"command": command, "env": False, "code": False, "sample_period_s": 0.2, **(settings or {})}
        whole = {"default_target": "here", "targets": {"here": {"python": sys.executable}}, "jobs": {job: one}}
        (self.project / "opsctl.yaml").write_text(json.dumps(whole))  # JSON is YAML
        self._opsctl("train", "start", job, **environment).ok()
        return self.ids()[-1]

    def ids(self) -> list[str]:
        """The ids of all runs, oldest first."""
        return [
            path.parent.name for path in sorted(self.folder.glob("*/run.json"), key=lambda one: one.stat().st_ctime)
        ]

    def pid(self, run_id: str) -> int:
        """The process id of the run's job."""
        return int(json.loads((self.folder / run_id / "run.json").read_text())["job"]["pid"])

    def signal(self, run_id: str, number: signal.Signals) -> float:
        """Send a signal to the job; returns when (epoch seconds)."""
        moment = time.time()
        os.kill(self.pid(run_id), number)
        return moment

    def wait_for_step(self, run_id: str, step: int, within_s: float = 20.0) -> None:
        """Wait until the log shows this step."""
        log = self.folder / run_id / "train.log"
        until(lambda: log.exists() and f"step {step}/" in log.read_text(errors="replace"), within_s)

    def end(self) -> None:
        """Kill whatever is left of any run."""
        for run_id in self.ids():
            sockets = self.folder / run_id / "tmux.sock"
            subprocess.run(["tmux", "-S", str(sockets), "kill-server"], capture_output=True, check=False)
            for pid in (*carrying(run_id), *self._recorder(run_id)):
                with contextlib.suppress(ProcessLookupError):  # it ended by itself
                    os.kill(pid, signal.SIGKILL)

    def _recorder(self, run_id: str) -> Iterator[int]:
        if (self.folder / run_id / "exit.json").exists():
            return
        recorder = json.loads((self.folder / run_id / "run.json").read_text()).get("recorder")
        if recorder:
            yield recorder["pid"]


class Watch:
    """A running `opsctl watch --json`, and the rows it has printed so far."""

    def __init__(self, project: Path, output: Path, *words: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen([COMMAND, "watch", "--json", *words], cwd=project, stdout=file)

    def rows(self, event: str | None = None) -> list[dict[str, Any]]:
        """The whole rows so far, of one event or of all."""
        data = self._output.read_text()
        rows = [json.loads(row) for row in data[: data.rfind("\n") + 1].splitlines()]
        return [row for row in rows if event in (None, row["event"])]

    def wait_for(self, event: str, within_s: float = 15.0, **fields: Any) -> dict[str, Any]:
        """The first row of this event with these fields."""

        def found() -> list[dict[str, Any]]:
            return [row for row in self.rows(event) if all(row.get(key) == value for key, value in fields.items())]

        return until(found, within_s)[0]

    def ended(self, within_s: float = 20.0) -> int:
        """Its exit code, once it ends."""
        return self.process.wait(within_s)

    def end(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
