"""Runs started through the installed command, in a target home of the test, and all ended after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.until import until

NVIDIA_SMI = Path(__file__).with_name("nvidia_smi")


def processes_with(entry: str) -> list[int]:
    """Living processes in whose environment this NAME=VALUE stands."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone in between, or not ours to read
            if entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return [pid for pid in found if state(pid) not in ("", "Z", "X")]


def killed_with(entry: str) -> list[int]:
    """The same, each with SIGKILL on its way."""
    found = processes_with(entry)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(pid, signal.SIGKILL)
    return found


def state(pid: int) -> str:
    """The state letter of a process, "" where it is gone."""
    with contextlib.suppress(OSError):  # gone
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    return state(pid) in ("", "Z", "X")


class Runs:
    """The runs of one test."""

    def __init__(self, opsctl: Callable[..., Any], project: Path, home: Path) -> None:
        self._opsctl = opsctl
        self.project = project
        self.home = home

    def start(self, *argv: str, name: str = "job", options: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
        """Start a command as a run; what `train start --json` says of it."""
        words = ("train", "start", "--name", name, *options, "--json", "--", *argv)
        started: dict[str, Any] = self._opsctl(*words, **variables).ok().json()
        return started

    def folder(self, run: dict[str, Any]) -> Path:
        """The run's folder."""
        return Path(run["folder"])

    def ended(self, run: dict[str, Any], within_s: float = 60.0) -> dict[str, Any]:
        """The exit record, once it is there."""
        path = self.folder(run) / "exit.json"
        until(path.exists, within_s)
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def log(self, run: dict[str, Any]) -> bytes:
        """The bytes of the run's log so far."""
        return (self.folder(run) / "train.log").read_bytes()

    def read(self, run: dict[str, Any], name: str) -> Any:
        """One JSON file of the run."""
        return json.loads((self.folder(run) / name).read_text())

    def rows(self, run: dict[str, Any], name: str) -> list[dict[str, Any]]:
        """The rows of one file of JSON lines."""
        path = self.folder(run) / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(row) for row in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half there

    def job_pid(self, run: dict[str, Any]) -> int:
        """The job's first process."""
        return int(run["run"]["job"]["pid"])

    def recorder_pid(self, run: dict[str, Any]) -> int:
        """The recorder."""
        return int(run["run"]["recorder"]["pid"])

    def members(self, run: dict[str, Any]) -> list[int]:
        """The run's living processes."""
        return processes_with(f"OPSCTL_RUN_ID={run['run_id']}")

    def machinery(self, run: dict[str, Any]) -> list[int]:
        """What opsctl itself runs for this run: tmux server, recorder, the recorder's children."""
        return processes_with(f"OPSCTL_RECORDER={run['run_id']}")

    def end_all(self) -> None:
        """Kill whatever the test's runs left."""
        for path in self.home.glob("runs/*/run.json"):
            run_id = path.parent.name
            for entry in (f"OPSCTL_RUN_ID={run_id}", f"OPSCTL_RECORDER={run_id}"):
                until(lambda entry=entry: not killed_with(entry))  # what was forked meanwhile is in the next look
            Path(json.loads(path.read_text())["socket"]).unlink(missing_ok=True)


@pytest.fixture
def runs(opsctl: Callable[..., Any], project: Path, tmp_path: Path) -> Iterator[Runs]:
    """A configured target in a home of the test."""
    home = tmp_path / "target"
    (project / "opsctl.yaml").write_text(
        json.dumps({"default_target": "here", "targets": {"here": {"home": str(home)}}})  # JSON is YAML
    )
    found = Runs(opsctl, project, home)
    yield found
    found.end_all()


class Smi:
    """The stand-in's plan: what nvidia-smi answers in this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def series(self, *polls: str, columns: str = "index, uuid, name, utilization.gpu, memory.used, power.draw") -> None:
        """Answer with these polls, one after the other; rows of CSV."""
        (self.folder / "series.csv").write_text(columns + "\n" + "\n\n".join(polls) + "\n")

    def mode(self, text: str) -> None:
        """From the next answer on: ok, hang, fail SENTENCE or say SENTENCE."""
        part = self.folder / "mode.part"
        part.write_text(text)
        part.replace(self.folder / "mode")

    def calls(self) -> list[str]:
        """Every start and end so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """A stand-in for nvidia-smi in front of PATH, with two idle GPUs."""
    folder = tmp_path / "smi"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "nvidia-smi").symlink_to(NVIDIA_SMI)
    assert NVIDIA_SMI.stat().st_mode & stat.S_IXUSR, "the stand-in is executable"
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("NVIDIA_SMI_PLAN", str(folder))
    found = Smi(folder)
    found.series("0, GPU-a, H200, 0, 4, 70\n1, GPU-b, H200, 0, 4, 70")
    return found
