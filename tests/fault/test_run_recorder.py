"""What holds when the recorder, its pane or its disk fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.recorder.findings import log_behind
from tests.conftest import COMMAND
from tests.support.runs import Runs, is_gone, processes_with
from tests.support.until import until

pytestmark = pytest.mark.tmux
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
)


def _kill_recorder(runs: Runs, run: dict[str, Any]) -> None:
    os.kill(runs.recorder_pid(run), signal.SIGKILL)
    until(lambda: is_gone(runs.recorder_pid(run)))


def test_dead_recorder_and_a_job_that_lives(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start(sys.executable, "-c", STUBBORN, name="one")
    until(lambda: runs.log(run) == b"up\n")
    _kill_recorder(runs, run)
    status = opsctl("train", "status", "--json").ok().json()
    assert (status["state"], status["verdict"]["verdict"]) == ("unwatched", "unknown")
    assert "recorder died" in status["message"]
    assert opsctl("train", "start", "--name", "one", "--", "true").code == 8
    opsctl("train", "stop").ok()
    assert is_gone(runs.job_pid(run))
    status = opsctl("train", "status", "--json").ok().json()
    assert (status["state"], status["verdict"]["verdict"]) == ("over", "stopped")


def test_dead_recorder_and_no_job(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sleep", "600", name="one")
    _kill_recorder(runs, run)
    until(lambda: is_gone(runs.job_pid(run)))  # its terminal hung up
    until(lambda: not runs.machinery(run))
    status = opsctl("train", "status", "--json").ok().json()
    assert (status["state"], status["verdict"]["verdict"]) == ("lost", "unknown")
    assert opsctl("train", "wait").code == 4
    opsctl("train", "start", "--name", "one", "--", "true").ok()


def test_restarted_machine_is_told_from_a_dead_recorder(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("true", name="one")
    runs.ended(run)
    (runs.folder(run) / "exit.json").unlink()
    record = runs.read(run, "run.json")
    record["recorder"]["boot_id"] = record["job"]["boot_id"] = "00000000-0000-0000-0000-000000000000"
    (runs.folder(run) / "run.json").write_text(json.dumps(record))
    status = opsctl("train", "status", "--json").ok().json()
    assert status["state"] == "lost"
    assert "restarted" in status["message"]


def test_dead_holder_of_the_terminal_costs_no_exit_record(runs: Runs) -> None:
    run = runs.start("sh", "-c", "trap '' HUP; echo up; until [ -e go ]; do sleep 0.05; done; exit 7")
    until(lambda: runs.log(run) == b"up\n")
    children = Path(f"/proc/{runs.recorder_pid(run)}/task/{runs.recorder_pid(run)}/children").read_text().split()
    (holder,) = (int(pid) for pid in children if int(pid) == os.getsid(runs.job_pid(run)))
    os.kill(holder, signal.SIGKILL)
    (runs.folder(run) / "go").touch()
    assert runs.ended(run)["attempts"][0]["exit_code"] == 7


def test_a_run_whose_folder_was_deleted_leaves_nothing_running(runs: Runs) -> None:
    run = runs.start("sleep", "600")
    folder = runs.folder(run)
    until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())  # files come while it goes
    os.kill(runs.job_pid(run), signal.SIGTERM)
    until(lambda: not runs.machinery(run))
    assert runs.members(run) == []


def test_pane_killed_and_the_run_goes_on(runs: Runs, opsctl: Callable[..., Any]) -> None:
    run = runs.start("sh", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two")
    until(lambda: runs.log(run) == b"one\n")
    subprocess.run(["tmux", "-S", run["run"]["socket"], "kill-server"], check=True)
    assert opsctl("train", "status", "--json").ok().json()["state"] == "running"
    (runs.folder(run) / "go").touch()
    assert runs.ended(run)["attempts"][0]["exit_code"] == 0
    assert runs.log(run) == b"one\ntwo\n"


@contextlib.contextmanager
def _small_disk(runs: Runs, folder: Path) -> Iterator[Path]:
    """A disk of 4 MiB that holds the target's home; the runs on it end before it goes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    settings = {"default_target": "here", "targets": {"here": {"home": str(folder / "home")}}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))
    runs.home = folder / "home"
    try:
        yield folder
    finally:
        runs.end_all()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(disk: Path) -> Path:
    """Leave no room on the disk; returns the file that takes it."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return ballast


@pytest.mark.root
def test_full_disk_costs_nothing_but_log(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    with _small_disk(runs, tmp_path / "small") as disk:
        job = (
            "echo before; until [ -e go ]; do sleep 0.05; done; seq 20000; "
            "until [ -e more ]; do sleep 0.05; done; echo after; exit 5"
        )
        run = runs.start("sh", "-c", job)
        until(lambda: runs.log(run) == b"before\n")
        _fill(disk)
        (runs.folder(run) / "go").touch()
        status = opsctl("train", "status", "--json").ok().json()
        assert status["state"] == "running"
        until(lambda: not is_gone(runs.job_pid(run)))
        (runs.folder(run) / "more").touch()
        record = runs.ended(run)
        assert record["attempts"][0]["exit_code"] == 5
        assert record["verdict"]["verdict"] == "crashed"
        assert record["missing_log_bytes"] > 0
        assert f"the log is not whole: {record['missing_log_bytes']} bytes" in opsctl("train", "status").ok().out
        assert "crashed (cause_unknown), log not whole" in opsctl("train", "list").ok().out
        until(lambda: is_gone(runs.recorder_pid(run)))
        assert not list(runs.folder(run).glob("*.part"))


@pytest.mark.root
def test_log_is_whole_when_the_disk_has_room_again(runs: Runs, tmp_path: Path) -> None:
    with _small_disk(runs, tmp_path / "small") as disk:
        run = runs.start("sh", "-c", "until [ -e go ]; do sleep 0.05; done; seq 20000; touch done; sleep 600")
        ballast = _fill(disk)
        (runs.folder(run) / "go").touch()
        until((runs.folder(run) / "done").exists)
        expected = "".join(f"{n}\n" for n in range(1, 20001)).encode()
        assert runs.log(run) != expected
        ballast.unlink()
        until(lambda: runs.log(run) == expected)
        summary = log_behind(0.0).summary
        until(lambda: [row["summary"] for row in runs.rows(run, "findings.jsonl")].count(summary) == 1)


def _memory_group(limit_mib: int) -> Path | None:
    """A cgroup with a memory limit, where this machine lets us make one."""
    root = Path("/sys/fs/cgroup/memory")
    if not root.is_dir():
        return None
    row = next(row for row in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in row)
    group = root / row.split(":", 2)[2].lstrip("/") / f"opsctl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_mib * 2**20))
    except OSError:
        return None
    return group


@pytest.mark.root
def test_kernel_kills_for_memory(runs: Runs, opsctl: Callable[..., Any]) -> None:
    """The job, not the recorder, is chosen, and the kernel's counter is the evidence; a neighbour is not blamed."""
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nraise SystemExit(5)"
    neighbour = runs.start(sys.executable, "-c", wait, name="neighbour")
    group = _memory_group(160)
    if group is None:
        pytest.skip("no memory cgroup can be made here")
    eater = "print('eating', flush=True)\nhold = []\nwhile True: hold.append(b'x' * (1 << 20))"
    enter = 'echo $$ >"$1"/cgroup.procs; shift; exec "$@"'
    argv = ("sh", "-c", enter, "sh", str(group), str(COMMAND))
    start = ("train", "start", "--name", "job", "--json", "--", sys.executable, "-c", eater)
    done = subprocess.run([*argv, *start], cwd=runs.project, capture_output=True, text=True, check=True)
    run = json.loads(done.stdout)
    record = runs.ended(run)
    assert record["attempts"][0]["signal"] == signal.SIGKILL
    assert record["verdict"]["verdict"] == "crashed"
    assert record["verdict"]["cause"] == "host_oom_killed"
    (runs.folder(neighbour) / "go").touch()
    assert runs.ended(neighbour)["verdict"]["cause"] == "cause_unknown"
    until(lambda: is_gone(runs.recorder_pid(run)))
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_follower_that_is_killed_leaves_nothing_behind(runs: Runs) -> None:
    run = runs.start("sleep", "600")
    mark = f"OPSCTL_TEST_CLIENT={os.urandom(8).hex()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [COMMAND, "train", "logs", "-f"], cwd=runs.project, env={**os.environ, name: value}, stdout=subprocess.PIPE
    ) as client:
        until(lambda: len(processes_with(mark)) >= 2)
        client.kill()
        until(lambda: processes_with(mark) == [])
    assert not is_gone(runs.job_pid(run))
