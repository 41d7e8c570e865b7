"""A running `opsctl watch --json`, and the small jobs that are worth watching."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until

JOBS = Path(__file__).parent / "jobs"
COMMAND = str(Path(sys.executable).with_name("opsctl"))
CALM = frozenset({"starting", "healthy", "finished"})


def job(name: str, *words: str) -> tuple[str, ...]:
    """The command of a job in tests/support/jobs."""
    return (sys.executable, str(JOBS / f"{name}.py"), *words)


def alarms(*verdicts: dict[str, Any]) -> list[dict[str, Any]]:
    """The verdicts that call somebody for no reason; that a busy machine slows a job down is told rightly."""
    return [one for one in verdicts if one["verdict"] not in CALM and one["cause"] != "throughput_drop"]


class Watch:
    """A watch, and the rows it has printed so far."""

    def __init__(self, project: Path, output: Path, *words: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen([COMMAND, "watch", "--json", *words], cwd=project, stdout=file)

    def rows(self, event: str | None = None) -> list[dict[str, Any]]:
        """The whole rows so far, of one event or of all."""
        data = self._output.read_text()
        rows = [json.loads(row) for row in data[: data.rfind("\n") + 1].splitlines()]
        return [row for row in rows if event in (None, row["event"])]

    def wait_for(self, event: str, within_s: float = 60.0, *, since: float = 0.0, **fields: Any) -> dict[str, Any]:
        """The first row of this event with these fields that was seen at `since` or later."""

        def found() -> list[dict[str, Any]]:
            rows = [row for row in self.rows(event) if row["time"] >= since]
            return [row for row in rows if all(row.get(key) == value for key, value in fields.items())]

        return until(found, within_s)[0]

    def ended(self, within_s: float = 60.0) -> int:
        """Its exit code, once it ends."""
        return self.process.wait(within_s)

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def watch(project: Path, tmp_path: Path) -> Iterator[Callable[..., Watch]]:
    """Start a watch with these words: `watch("--fail-fast")`."""
    watches: list[Watch] = []

    def start(*words: str) -> Watch:
        watches.append(Watch(project, tmp_path / f"watch-{len(watches)}.jsonl", *words))
        return watches[-1]

    yield start
    for one in watches:
        one.close()
