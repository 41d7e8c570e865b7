"""Healthy jobs that look alarming: nobody is called."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Ended
from tests.support.runs import Runs, Smi
from tests.support.until import until
from tests.support.watching import Watch, alarms, job, watch

__all__ = ["watch"]
pytestmark = pytest.mark.tmux
Opsctl = Callable[..., Ended]


@pytest.mark.parametrize(
    "words",
    [
        ("--noisy",),
        ("--varying",),
        ("--eval-every", "60", "--save-every", "90"),
        ("--noisy", "--varying", "--eval-every", "50", "--save-every", "40", "--step-s", "0.03"),
    ],
    ids=["noisy", "varying", "eval-and-save", "all"],
)
def test_no_alarm(runs: Runs, smi: Smi, opsctl: Opsctl, watch: Callable[..., Watch], words: tuple[str, ...]) -> None:
    used = [40000, 66000] if "--varying" in words else [40000, 40000]
    smi.series(*(f"0, GPU-a, H200, {90 + n % 9}, {used[n % 2] + n}, 600" for n in range(40)))
    run = runs.start(*job("lively", "--seconds", "14", *words))
    seen = watch()
    assert seen.ended() == 0
    assert alarms(*seen.rows("verdict")) == []
    assert runs.ended(run)["verdict"]["verdict"] == "finished"
    again = opsctl("diagnose", str(runs.folder(run)), "--json").ok().json()
    assert again["verdict"] == "finished"
    assert not [
        row for row in again["findings"] if row["severity"] in ("error", "fatal") and "ValueError" not in str(row)
    ]


class _Monitor(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]  # the fixture's list
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Quiet."""


@pytest.fixture
def monitor() -> Iterator[http.server.HTTPServer]:
    """An outside monitor that wants to hear from a run."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _Monitor)
    server.paths = []  # type: ignore[attr-defined]  # what was asked for
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_heartbeat_reaches_its_monitor(runs: Runs, monitor: http.server.HTTPServer) -> None:
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    address = f"http://127.0.0.1:{monitor.server_port}/ping/run-7"
    (runs.project / "opsctl.yaml").write_text(json.dumps({**settings, "notify": {"heartbeat": address}}))
    runs.start(*job("steps", "--steps", "100000"))
    until(lambda: "/ping/run-7" in monitor.paths)  # type: ignore[attr-defined]  # the fixture's list
