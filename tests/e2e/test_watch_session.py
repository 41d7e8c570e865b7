"""`opsctl watch --session`: a tmux session that opsctl did not start."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.agent.processes import pids, words
from tests.conftest import Ended
from tests.support.left import unique_nap
from tests.support.panes import ForeignSession, foreign
from tests.support.place import Place
from tests.support.places import combinations
from tests.support.runs import Runs
from tests.support.until import until
from tests.support.watching import JOBS, Watch, alarms, watch

__all__ = ["foreign", "watch"]
pytestmark = pytest.mark.tmux
Opsctl = Callable[..., Ended]
Foreign = Callable[..., ForeignSession]
# a row is wider than the panes below
WIDE = """
import itertools, time
for step in itertools.count(1):
    print(f"step {step}/100000 | loss {4 / (1 + step / 10):.4f} | lr 3.0e-04 | 31,250 tok/s | mem 41 GiB", flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def wide(tmp_path: Path) -> tuple[str, ...]:
    """A job whose rows are wider than its pane."""
    (tmp_path / "wide.py").write_text(WIDE)
    return (sys.executable, str(tmp_path / "wide.py"))


def _rows(seen: Watch) -> list[str]:
    return "".join(event["text"] for event in seen.rows("log")).splitlines()


def _steps(rows: list[str]) -> list[int]:
    return [int(row.split()[1].split("/")[0]) for row in rows if row.startswith("step ")]


def _pid(argv: tuple[str, ...]) -> int:
    """The process with this command line."""
    wanted = tuple(map(os.fsencode, argv))
    return until(lambda: [pid for pid in pids() if words(pid) == wanted])[0]


@pytest.mark.usefixtures("runs")
def test_rows_come_whole_and_once_though_the_pane_wraps_and_scrolls(
    foreign: Foreign, watch: Callable[..., Watch], wide: tuple[str, ...]
) -> None:
    session = foreign(columns=50, rows=10)
    session.type(*wide)
    until(lambda: "step 40/" in session.text())
    seen = watch(*session.words())
    assert seen.wait_for("verdict", verdict="healthy")["cause"] == "ok"
    until(lambda: len(_steps(_rows(seen))) > 400)
    steps = _steps(_rows(seen))
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert all(row.endswith("mem 41 GiB") for row in _rows(seen) if row.startswith("step "))
    assert alarms(*seen.rows("verdict")) == []
    pieces = seen.rows("log")
    assert [piece["start"] for piece in pieces[1:]] == [piece["end"] for piece in pieces[:-1]]


@pytest.mark.usefixtures("runs")
def test_a_kill_in_a_foreign_session_is_a_crash(
    foreign: Foreign, watch: Callable[..., Watch], wide: tuple[str, ...]
) -> None:
    session = foreign()
    session.type(*wide)
    seen = watch(*session.words())
    seen.wait_for("verdict", verdict="healthy")
    os.kill(_pid(wide), signal.SIGKILL)
    assert seen.wait_for("verdict", verdict="crashed")["cause"] == "sigkill_unknown"
    assert seen.ended() == 1
    assert seen.rows("status")[-1]["state"] == "over"


@pytest.mark.usefixtures("runs")
def test_a_traceback_in_a_narrow_pane_is_named_with_its_place(foreign: Foreign, opsctl: Opsctl) -> None:
    session = foreign(columns=40)
    session.type(sys.executable, str(JOBS / "steps.py"), "--steps", "5", "--then", "raise")
    until(lambda: "no supervised slot in batch 6\n" in session.text())
    session.wait_for_prompt()  # the process has ended
    state = opsctl("watch", *session.words(), "--once", "--json")
    assert state.code == 1
    verdict = state.json()["verdict"]
    assert (verdict["verdict"], verdict["cause"]) == ("crashed", "python_exception")
    assert any(f"{JOBS / 'steps.py'}:" in row for row in verdict["evidence"])


@pytest.mark.usefixtures("runs")
def test_an_earlier_crash_in_the_same_pane_is_not_the_running_jobs(
    foreign: Foreign, opsctl: Opsctl, wide: tuple[str, ...]
) -> None:
    session = foreign()
    session.type(sys.executable, "-c", "raise ValueError('an earlier job')")
    until(lambda: "ValueError: an earlier job" in session.text())
    session.wait_for_prompt()
    sleeper = (sys.executable, "-c", f"import time; time.sleep({unique_nap()})")
    session.type(*sleeper)
    _pid(sleeper)
    state = opsctl("watch", *session.words(), "--once", "--json")
    assert state.code == 0, state.out
    assert state.json()["verdict"]["verdict"] == "starting"


@pytest.mark.usefixtures("runs")
def test_a_session_that_closes_with_its_job_ends_the_watch(foreign: Foreign, watch: Callable[..., Watch]) -> None:
    session = foreign()
    job = shlex.join((sys.executable, str(JOBS / "steps.py"), "--steps", "100", "--step-s", "0.05"))
    session.type("exec", "sh", "-c", f"{job}; read word")  # so that its last words are still seen
    seen = watch(*session.words())
    until(lambda: "training finished" in _rows(seen))
    session.type("leave")
    assert seen.ended() == 0
    assert seen.rows("verdict")[-1]["verdict"] == "finished"


@pytest.mark.usefixtures("runs")
def test_a_session_that_closes_over_its_jobs_last_words_is_no_crash(
    foreign: Foreign, watch: Callable[..., Watch], wide: tuple[str, ...]
) -> None:
    session = foreign()
    session.type("exec", *wide)
    seen = watch(*session.words())
    seen.wait_for("verdict", verdict="healthy")
    session.tmux("kill-session", "-t", session.name)
    assert seen.ended() == 4
    assert "terminal closed" in seen.rows("verdict")[-1]["evidence"][0]


@pytest.mark.usefixtures("runs")
def test_what_is_not_there_is_named(foreign: Foreign, opsctl: Opsctl) -> None:
    session = foreign()
    ended = opsctl("watch", "--session", "trian", "--socket", session.socket)
    assert ended.code == 2
    assert "sessions there: train" in ended.err
    ended = opsctl("watch", "--session", "train", "--socket", f"{session.socket}-not")
    assert ended.code == 2
    assert "no tmux server listens" in ended.err
    assert opsctl("watch", "job", "--session", "train").code == 2
    assert opsctl("watch", "--socket", "/x").code == 2


@pytest.mark.ssh
def test_a_link_that_is_cut_costs_no_row_and_repeats_none(
    runs: Runs, foreign: Foreign, watch: Callable[..., Watch], wide: tuple[str, ...], far_sshd: Any, proxy: Any
) -> None:
    config = json.loads((runs.project / "opsctl.yaml").read_text())
    host = {**far_sshd.settings, "connect_timeout_s": 5.0}
    config["targets"]["far"] = {**config["targets"]["here"], "host": host, "python": sys.executable}
    (runs.project / "opsctl.yaml").write_text(json.dumps(config))
    session = foreign(columns=50, rows=10)
    session.type(*wide)
    seen = watch("-t", "far", *session.words())
    for cut in range(1, 4):
        seen.wait_for("verdict", verdict="healthy")
        proxy.cut()
        until(lambda cut=cut: len([row for row in seen.rows("link") if row["is_up"]]) >= cut)
        pieces = len(seen.rows("log"))
        until(lambda pieces=pieces: len(seen.rows("log")) > pieces + 2)
    steps = _steps(_rows(seen))
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert alarms(*seen.rows("verdict")) == []


@pytest.fixture
def home(place: Place) -> Iterator[str]:
    """A home inside; gone at the end."""
    with place.folder() as folder:
        yield f"{folder}/home"


@pytest.mark.parametrize(
    "combination", [one for one in combinations() if one.id in ("ssh-docker", "ssh-lxc", "local-pct")], indirect=True
)
def test_a_session_on_every_kind_of_target(
    opsctl: Opsctl, place: Place, host: Any, home: str, project: Path, watch: Callable[..., Watch]
) -> None:
    targets = {"t": place.settings(host=host, home=home)}
    (project / "opsctl.yaml").write_text(yaml.safe_dump({"default_target": "t", "targets": targets}))
    socket = f"/tmp/pane-{secrets.token_hex(4)}"
    script = (
        f"i=0; until [ -e {socket}.enough ]; do i=$((i+1)); echo step $i/9999 loss 2.5; sleep 0.05; done; echo Killed"
    )
    tmux = ("exec", "--", "tmux", "-S", socket)
    opsctl(*tmux, "-f", "/dev/null", "new-session", "-d", "-s", "train", "sh").ok()
    try:
        opsctl(*tmux, "send-keys", "-t", "train", shlex.join(("sh", "-c", script)), "Enter").ok()
        seen = watch("--session", "train", "--socket", socket)
        seen.wait_for("verdict", verdict="healthy")
        place.outside(f"{socket}.enough").touch()
        assert seen.ended() == 1
        assert seen.rows("verdict")[-1]["cause"] == "sigkill_unknown"
    finally:
        opsctl(*tmux, "kill-server")
