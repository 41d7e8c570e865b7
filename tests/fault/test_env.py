"""Rebuilds that are killed, starved or raced: the old environment or the new one is whole and active, never a mix."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND
from tests.support.envs import Envs
from tests.support.runs import processes_with
from tests.support.until import until
from tests.support.wheel_server import wheel_server

pytestmark = pytest.mark.tmux


def _rebuild_in_background(envs: Envs) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([COMMAND, "env", "rebuild"], cwd=envs.project, stdout=pipe, stderr=pipe, text=True)


def _phases(envs: Envs, known: set[Path]) -> str:
    """The progress rows of the newest rebuild that is not among `known`."""
    new = set(envs.home.glob("runs/env-rebuild-*")) - known
    return "".join((run / "metrics.jsonl").read_text() for run in new if (run / "metrics.jsonl").exists())


def _signal_members(envs: Envs, known: set[Path], number: signal.Signals) -> None:
    """Signal every process of a new rebuild, its recorder apart."""
    for run in set(envs.home.glob("runs/env-rebuild-*")) - known:
        for pid in processes_with(f"OPSCTL_RUN_ID={run.name}"):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, number)


def _moment(phase: str, pause_s: float) -> Callable[[Envs, set[Path]], None]:
    """Wait until a rebuild is in `phase`, and a little longer."""

    def wait(envs: Envs, known: set[Path]) -> None:
        until(lambda: f'"{phase}"' in _phases(envs, known))
        threading.Event().wait(pause_s)  # no condition to wait for: any point will do

    return wait


@pytest.mark.parametrize("phase", ["venv", "install", "check", "prove", "write"])
def test_a_rebuild_killed_at_a_random_point_leaves_the_old_or_the_new_one(envs: Envs, phase: str) -> None:
    old = envs.rebuild()["outcome"]["env_id"]
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    known = set(envs.home.glob("runs/env-rebuild-*"))
    rebuild = _rebuild_in_background(envs)
    _moment(phase, random.random() * 0.1)(envs, known)
    _signal_members(envs, known, signal.SIGKILL)
    out, err = rebuild.communicate(timeout=60)
    assert envs.verify("--full") == [], "whichever is active is whole"
    is_old = envs.active.name == old
    version = "1.0" if is_old else "2.0"
    assert (envs.site_packages / f"tiny_b-{version}.dist-info").is_dir()
    assert rebuild.returncode == (5 if is_old else rebuild.returncode), out + err
    after = envs.rebuild()["outcome"]
    assert after["record"]["packages"]["tiny-b"] == "2.0"
    assert sorted(envs.standing()) == sorted({old, after["env_id"]}), "what the killed one left is swept"


def test_a_rebuild_goes_on_when_its_client_is_killed(envs: Envs) -> None:
    rebuild = _rebuild_in_background(envs)
    _moment("venv", 0)(envs, set())
    rebuild.kill()
    rebuild.communicate(timeout=60)
    (run,) = envs.home.glob("runs/env-rebuild-*")
    until(lambda: (run / "exit.json").exists())
    assert (run / "result.json").exists()
    assert envs.verify("--full") == []
    assert envs.rebuild()["outcome"]["is_new"] is False


def test_two_rebuilds_at_once_one_works_and_one_is_told_who(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    with wheel_server(envs.wheels) as server:
        server.may_send.clear()
        envs.configure(env={"name": "tiny", "find_links": [server.address], "index_url": f"{server.address}simple"})
        first = _rebuild_in_background(envs)
        until(lambda: any(path.endswith(".whl") for path, _ in server.seen))
        second = envs.opsctl("env", "rebuild")
        server.may_send.set()
        out, err = first.communicate(timeout=60)
    assert (first.returncode, second.code) == (0, 8), out + err + second.err
    assert "opsctl train logs -f env-rebuild" in second.err
    assert len(envs.standing()) == 1


def test_a_file_that_is_not_the_locked_one_is_named_with_both_hashes(envs: Envs) -> None:
    old = envs.rebuild()["outcome"]["env_id"]
    envs.wheel("tiny-b", "2.0")
    envs.pins("tiny-a==1.0", "tiny-b==2.0")
    locked = envs.lock.read_text().rpartition("sha256:")[2].strip()
    envs.wheel("tiny-b", "2.0", files={"tiny_b/other.py": b""})
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    for words in ("tiny-b", locked, "the lock says", "find_links"):
        assert words in failed.err
    assert envs.active.name == old
    assert envs.standing() == [old]


# --- a full disk -----------------------------------------------------------------------------------


@pytest.fixture
def small_home(envs: Envs) -> Iterator[Envs]:
    """The target's home on a file system of 24 MiB, with an environment in it."""
    tools = (envs.home / "tools").rename(envs.project / "tools")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", envs.home], check=True)
    subprocess.run(["cp", "-a", tools, envs.home], check=True)
    yield envs
    subprocess.run(["umount", "--lazy", envs.home], check=True)


def _big(envs: Envs) -> None:
    """A lock whose second package does not fit."""
    noise = random.Random(1).randbytes(30 << 20)
    envs.wheel("tiny-b", "2.0", files={"tiny_b/large.bin": noise})
    envs.pins("tiny-a==1.0", "tiny-b==2.0")


@pytest.mark.root
def test_a_set_that_cannot_fit_is_refused_before_anything_is_written(small_home: Envs) -> None:
    old = small_home.rebuild()["outcome"]["env_id"]
    _big(small_home)
    failed = small_home.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "needs about" in failed.err
    assert small_home.standing() == [old]
    assert small_home.verify("--full") == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def served(envs: Envs) -> Iterator[str]:
    """The wheels behind an address, so that their size is not known before."""
    envs.wheels.mkdir(exist_ok=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(envs.wheels)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.root
def test_a_disk_that_fills_up_while_building_leaves_the_old_one_whole(
    small_home: Envs, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = small_home.rebuild()["outcome"]["env_id"]
    monkeypatch.setenv("UV_OFFLINE", "0")
    _big(small_home)
    small_home.configure(find_links=(served,))
    failed = small_home.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "no space left" in failed.err
    assert small_home.standing() == [old]
    assert small_home.active.name == old
    assert small_home.verify("--full") == []
