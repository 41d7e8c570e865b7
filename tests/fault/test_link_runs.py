"""A run whose link fails: it goes on, its log arrives whole, and nobody calls it crashed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.ops.runs import LogPlace, log, status
from opsctl.ops.workspace import Workspace, open_workspace
from tests.support.proxy import LinkProxy
from tests.support.runs import Runs
from tests.support.sshd import Sshd
from tests.support.until import until
from tests.support.watching import Watch, alarms, job, watch

__all__ = ["watch"]
pytestmark = [pytest.mark.ssh, pytest.mark.tmux]

NUM_CUTS = int(os.environ.get("OPSCTL_TEST_CUTS", "10"))  # the promise is 100
# rows without end, until the file that is its argument is there
WRITER = """
import itertools, os, random, sys, time
rows = random.Random(7)
for number in itertools.count():
    print(f"{number:8} {rows.randbytes(45).hex()}", flush=True)
    if number % 50 == 0:
        time.sleep(0.02)
        if os.path.exists(sys.argv[1]):
            break
"""


@pytest.fixture
def far(runs: Runs, far_sshd: Sshd, proxy: LinkProxy) -> Workspace:
    """The runs' target seen over the proxy, as target `far` beside `here`."""
    config = json.loads((runs.project / "opsctl.yaml").read_text())
    host = {**far_sshd.settings, "connect_timeout_s": 4.0}
    config["targets"]["far"] = {**config["targets"]["here"], "host": host, "python": sys.executable}
    (runs.project / "opsctl.yaml").write_text(json.dumps(config))
    return open_workspace(runs.project / "opsctl.yaml", "far")


def test_a_followed_log_over_many_cuts_is_the_log(runs: Runs, far: Workspace, proxy: LinkProxy, tmp_path: Path) -> None:
    run = runs.start(sys.executable, "-c", WRITER, str(tmp_path / "enough"))
    dice = random.Random(time.time_ns())
    cuts: list[str] = []
    seen = bytearray()
    with contextlib.closing(
        log(far, run["run_id"], place=LogPlace(start=0), follow=True, on_link=cuts.append)
    ) as pieces:
        for piece in pieces:
            assert piece.start == len(seen)
            seen += piece.data
            if len(cuts) >= NUM_CUTS:
                (tmp_path / "enough").touch()
            elif proxy.cut_after_bytes is None:
                proxy.cut_after_bytes = dice.randrange(1_000, 100_000)
    assert bytes(seen) == runs.log(run)
    assert runs.ended(run)["log_bytes"] == len(seen)
    far.target.host.close()  # type: ignore[attr-defined]  # an SshHost


def test_the_verdict_is_unknown_while_the_link_is_down_and_the_run_goes_on(
    runs: Runs, far: Workspace, proxy: LinkProxy, watch: Callable[..., Watch]
) -> None:
    run = runs.start(*job("steps", "--steps", "100000", "--step-s", "0.05"))
    seen = watch("-t", "far")
    seen.wait_for("caught_up")
    proxy.swallow()
    lost = time.time()
    down = seen.wait_for("link", is_up=False)
    assert down["time"] - lost < 15.0  # 5 s of silence, on a busy machine
    proxy.heal()
    seen.wait_for("link", is_up=True)
    until(lambda: seen.rows("log")[-1]["time"] > lost + 5.0 if seen.rows("log") else False)
    assert alarms(*seen.rows("verdict")) == []
    assert status(far, run["run_id"]).state == "running"
    far.target.host.close()  # type: ignore[attr-defined]  # an SshHost
