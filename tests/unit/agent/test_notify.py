"""The child that delivers notifications, against a real receiver."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest


class _Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.told.append(json.loads(body))  # type: ignore[attr-defined]  # the fixture's list
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Quiet."""


@pytest.fixture
def hook() -> Iterator[http.server.HTTPServer]:
    """A webhook's receiver."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _Hook)
    server.told = []  # type: ignore[attr-defined]  # what it received
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _deliver(order: dict[str, Any]) -> int:
    code = "import sys; from opsctl.agent.recorder.notify import deliver; sys.exit(deliver([]))"
    return subprocess.run([sys.executable, "-c", code], input=json.dumps(order), text=True, timeout=120).returncode


def test_webhook_gets_the_message(hook: http.server.HTTPServer) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/x"
    assert _deliver({"notify": {"webhook": url}, "message": {"verdict": "crashed"}}) == 0
    assert hook.told == [{"verdict": "crashed"}]  # type: ignore[attr-defined]  # the fixture's list


def test_one_way_that_fails_does_not_keep_the_others_back(hook: http.server.HTTPServer) -> None:
    url = f"http://127.0.0.1:{hook.server_port}/x"
    order = {"notify": {"command": ["/no/such/program"], "webhook": url}, "message": {"verdict": "hung"}}
    assert _deliver(order) == 1
    assert hook.told == [{"verdict": "hung"}]  # type: ignore[attr-defined]  # the fixture's list
