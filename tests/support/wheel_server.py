"""A page of wheels behind http: it may ask for a password, send too little, or send something else."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class WheelServer:
    """What the server does, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.password = ""  # USER:PASSWORD that it wants
        self.num_cut = 0  # so many answers with a wheel end in the middle
        self.changed: dict[str, bytes] = {}  # sent instead of what the page promises
        self.seen: list[tuple[str, str]] = []  # path and Range of each request

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/"

    def listed(self) -> dict[str, str]:
        """File -> sha256."""
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(self.folder.glob("*.whl"))}

    def take_cut(self) -> bool:
        """Whether this answer ends in the middle."""
        self.num_cut -= 1
        return self.num_cut >= 0


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, server_plan: WheelServer) -> None:
        self.plan = server_plan
        super().__init__(*arguments, directory=str(server_plan.folder))

    def do_GET(self) -> None:
        self.plan.seen.append((self.path, self.headers.get("Range", "")))
        wanted = "Basic " + base64.b64encode(self.plan.password.encode()).decode()
        if self.plan.password and self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="wheels"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/":
            self._page()
        elif self.path.endswith(".whl"):
            self._wheel(Path(self.translate_path(self.path)).read_bytes())
        else:
            super().do_GET()

    def _page(self) -> None:
        """The wheels with their hashes, as indexes list them."""
        rows = [f'<a href="{name}#sha256={sha256}">{name}</a>' for name, sha256 in self.plan.listed().items()]
        body = "\n".join(["<!DOCTYPE html><html><body>", *rows, "</body></html>"]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _wheel(self, data: bytes) -> None:
        data = self.plan.changed.get(self.path[1:], data)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.plan.take_cut():
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def wheel_server(folder: Path) -> Iterator[WheelServer]:
    """A server of the wheels in this folder; gone when the block ends."""
    plan = WheelServer(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, server_plan=plan))
    plan.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield plan
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
