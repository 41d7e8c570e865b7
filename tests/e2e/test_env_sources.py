"""Where a rebuild gets its files: mirrors with passwords, proxies, certificates; and which set a driver gets."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.envs import Envs
from tests.support.runs import Smi
from tests.support.until import until

pytestmark = pytest.mark.tmux

USER, PASSWORD = "ana", "s3cret-w0rd"


class Looks:
    """Counts how often somebody has looked at all processes, so that whoever asks can stay until he was seen."""

    def __init__(self) -> None:
        self.num: int | None = None  # nobody looks

    def wait(self) -> None:
        """Return once a whole look has begun and ended, if anybody looks."""
        before = self.num
        until(lambda: before is None or self.num is None or self.num >= before + 2)


class _Guarded(http.server.SimpleHTTPRequestHandler):
    """Wheels for those who know the password; everybody is noted."""

    seen: list[str]
    look: Looks

    def do_GET(self) -> None:
        self.look.wait()
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self.seen.append(self.path)
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="wheels"')
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def _serving(handler: Any) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def guarded(envs: Envs, looks: Looks) -> Iterator[int]:
    """The port of a server that gives wheels only to those who know the password."""
    handler = type("Guarded", (_Guarded,), {"seen": [], "look": looks})
    with _serving(functools.partial(handler, directory=str(envs.wheels))) as port:
        yield port


def _from(envs: Envs, address: str, **settings: str) -> None:
    """Let the wheels come from this address, and from nowhere else."""
    envs.configure(env={"name": "tiny", "find_links": [address], "index_url": f"{address}simple", **settings})


def _holding(text: bytes, *folders: Path) -> list[str]:
    """The files below these folders that hold the text."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in files if text in path.read_bytes()]


def _command_lines() -> Iterator[bytes]:
    """What everybody on this machine may read of every process."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended
            yield path.read_bytes()


@pytest.mark.parametrize("encoded", [PASSWORD, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()])
def test_a_password_in_an_address_is_nowhere_afterwards(
    envs: Envs, guarded: int, encoded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    monkeypatch.setenv("WHEELS_PASSWORD", PASSWORD)
    _from(envs, f"http://{USER}:${{WHEELS_PASSWORD}}@127.0.0.1:{guarded}/")
    done = envs.opsctl("env", "rebuild").ok()
    assert encoded not in done.out + done.err
    assert _holding(encoded.encode(), envs.home, envs.project, envs.uv_cache) == []


def test_a_wrong_password_is_told_without_it(envs: Envs, guarded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    _from(envs, f"http://{USER}:wrong-w0rd@127.0.0.1:{guarded}/")
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 5
    assert f"127.0.0.1:{guarded}" in failed.err
    assert "wrong-w0rd" not in failed.err
    assert _holding(b"wrong-w0rd", envs.home, envs.uv_cache) == []


def test_no_process_and_no_request_of_a_job_shows_a_password(
    envs: Envs, guarded: int, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    _from(envs, f"http://{USER}:{PASSWORD}@127.0.0.1:{guarded}/")
    seen: list[bytes] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.002):
            seen.extend(line for line in _command_lines() if str(envs.home).encode() in line)
            looks.num = (looks.num or 0) + 1

    watcher = threading.Thread(target=look)
    watcher.start()
    until(lambda: looks.num)
    envs.rebuild()
    is_over.set()
    watcher.join()
    looks.num = None
    assert any(b"sync" in line for line in seen), "uv was seen at work"
    (request,) = envs.home.glob("runs/*/request.json")
    assert "tiny" in request.read_text(), "what the job was asked"
    assert [text for text in (*seen, request.read_bytes()) if PASSWORD.encode() in text] == []


def test_a_variable_that_is_not_set_is_named(envs: Envs) -> None:
    envs.configure(find_links=("https://${NOT_THERE}@127.0.0.1/",))
    failed = envs.opsctl("env", "rebuild")
    assert failed.code == 3
    assert "env.find_links refers to the environment variable NOT_THERE" in failed.err


class _Proxy(_Guarded):
    """A proxy as far as plain http needs one: the whole address stands in the request."""

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.path = "/" + self.path.split("/", 3)[3]
        super(_Guarded, self).do_GET()


def test_a_configured_proxy_is_asked(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "0")
    seen: list[str] = []
    handler = type("Proxy", (_Proxy,), {"seen": seen})
    with _serving(functools.partial(handler, directory=str(envs.wheels))) as port:
        _from(envs, "http://wheels.invalid/", proxy=f"http://127.0.0.1:{port}")
        assert envs.rebuild()["outcome"]["is_new"]
    assert any(path.startswith("http://wheels.invalid/tiny_a-1.0") for path in seen)


def test_configured_certificates_are_brought_along(envs: Envs) -> None:
    bundle = envs.project / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n")
    envs.configure(env={"name": "tiny", "find_links": [str(envs.wheels)], "ca_bundle": "ca.pem"})
    run = envs.rebuild()["run_id"]
    assert (envs.home / "runs" / run / "ca-bundle.pem").read_text() == bundle.read_text()


# --- the driver chooses ----------------------------------------------------------------------------


@pytest.fixture
def sets(envs: Envs) -> Envs:
    """Two sets: `tiny` without CUDA, `cuda13` with."""
    envs.wheel("nvidia-cuda-runtime", "13.0.96")
    envs.pins("tiny-a==1.0", "tiny-b==1.0", "nvidia-cuda-runtime==13.0.96")
    envs.lock.rename(envs.lock.with_name("cuda13.lock"))
    envs.pins("tiny-a==1.0", "tiny-b==1.0")
    envs.configure(env={"name": "auto", "find_links": [str(envs.wheels)]})
    return envs


def test_without_a_driver_auto_is_the_set_without_cuda(sets: Envs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _path_without_smi())
    found = sets.rebuild()
    assert found["outcome"]["record"]["name"] == "tiny"
    assert "no NVIDIA driver" in " ".join(found["notes"])


def _path_without_smi() -> str:
    return os.pathsep.join(
        part for part in os.environ["PATH"].split(os.pathsep) if not (Path(part) / "nvidia-smi").exists()
    )


def _driver(smi: Smi, version: str) -> None:
    smi.series(f"0, GPU-0, H200, {version}", columns="index, uuid, name, driver_version")


def test_the_driver_chooses_the_set(sets: Envs, smi: Smi) -> None:
    _driver(smi, "580.65.06")
    found = sets.rebuild()
    assert found["outcome"]["record"]["name"] == "cuda13"
    assert "driver 580.65.06: the set is cuda13, of cuda13, tiny" in found["notes"]
    assert sets.rebuild()["outcome"]["is_new"] is False


def test_a_driver_too_old_is_told_before_anything_is_downloaded(sets: Envs, smi: Smi) -> None:
    _driver(smi, "550.54.15")
    failed = sets.opsctl("env", "rebuild")
    assert failed.code == 1
    for words in ("driver 550.54.15 is too old", "cuda13 (CUDA 13.0) needs 580.65.06", "opsctl env rebuild cpu"):
        assert words in failed.err
    named = sets.opsctl("env", "rebuild", "cuda13")
    assert (named.code, "too old for the set cuda13" in named.err) == (1, True)
    assert not list(sets.home.glob("runs/*")), "no build was started"
    assert sets.rebuild("tiny")["outcome"]["is_new"], "a set without CUDA does not ask"


def test_a_driver_that_does_not_answer_is_no_reason_to_guess(sets: Envs, smi: Smi) -> None:
    _driver(smi, "580.65.06")
    smi.mode("fail Failed to initialize NVML: Driver/library version mismatch")
    failed = sets.opsctl("env", "rebuild")
    assert failed.code == 5
    assert "version mismatch" in failed.err
    assert "name the set instead" in failed.err
