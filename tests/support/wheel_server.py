"""A page of wheels behind http: it may ask for a password, send too little, or send something else."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import re
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
        self.is_index = False  # answer at simple/ too
        self.claimed_size = 0  # what the index says of each file's size; 0: the truth
        self.changed: dict[str, bytes] = {}  # sent instead of what the page promises
        self.seen: list[tuple[str, str]] = []  # path and Range of each request
        self.may_send = threading.Event()  # cleared: whoever asks for a wheel waits
        self.may_send.set()

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
        elif self.path.startswith("/simple/"):
            self._index(self.path.split("/")[2])
        elif self.path.endswith(".whl"):
            self._wheel(Path(self.translate_path(self.path)).read_bytes())
        else:
            super().do_GET()

    def _page(self) -> None:
        """The wheels with their hashes, as indexes list them."""
        rows = [f'<a href="{name}#sha256={sha256}">{name}</a>' for name, sha256 in self.plan.listed().items()]
        self._say("text/html", "\n".join(["<!DOCTYPE html><html><body>", *rows, "</body></html>"]))

    def _index(self, package: str) -> None:
        """The wheels of one package with hashes and sizes, as PyPI's JSON lists them; there are none by default."""
        names = [name for name in self.plan.listed() if name.startswith(package.replace("-", "_") + "-")]
        if not names or not self.plan.is_index:
            self.send_error(404)
            return
        hashes = self.plan.listed()
        files = [
            {
                "filename": name,
                "url": f"/{name}",
                "hashes": {"sha256": hashes[name]},
                "size": self.plan.claimed_size or (self.plan.folder / name).stat().st_size,
            }
            for name in names
        ]
        body = {"meta": {"api-version": "1.0"}, "name": package, "files": files}
        self._say("application/vnd.pypi.simple.v1+json", json.dumps(body))

    def _say(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _wheel(self, data: bytes) -> None:
        self.plan.may_send.wait(60)
        data = self.plan.changed.get(self.path[1:], data)
        rest = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(rest[1]) if rest else 0
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
