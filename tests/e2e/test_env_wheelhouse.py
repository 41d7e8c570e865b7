"""Wheels fetched on the operator's side and brought to a target that has no way out."""

from __future__ import annotations

import hashlib
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker import docker_place
from tests.support.envs import PYTHON, Envs
from tests.support.place import Place
from tests.support.wheel_server import WheelServer, wheel_server

pytestmark = pytest.mark.tmux


@pytest.fixture
def server(envs: Envs, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelServer]:
    """The wheels behind http, and a configuration that names nothing else."""
    monkeypatch.setenv("UV_OFFLINE", "0")
    with wheel_server(envs.wheels) as found:
        _from(envs, found.address)
        yield found


def _from(envs: Envs, address: str) -> None:
    envs.configure(env={"name": "tiny", "find_links": [address], "index_url": f"{address}simple"})


def _fetch(envs: Envs, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = envs.opsctl("env", "fetch", "house", *words, "--json").ok().json()
    return found


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


NAMES = ["tiny_a-1.0-py3-none-any.whl", "tiny_b-1.0-py3-none-any.whl"]


def test_fetch_fills_a_folder_and_leaves_what_is_right(envs: Envs, server: WheelServer) -> None:
    first = _fetch(envs)
    house = envs.project / "house"
    assert (first["num_files"], first["num_new"], _names(house)) == (2, 2, NAMES)
    (house / NAMES[0]).write_bytes(b"changed")
    assert _fetch(envs)["num_new"] == 1
    assert (house / NAMES[0]).read_bytes() == (envs.wheels / NAMES[0]).read_bytes()


def test_a_cut_download_goes_on_where_it_ended(envs: Envs, server: WheelServer) -> None:
    envs.wheel("tiny-a", files={"tiny_a/noise.bin": random.Random(1).randbytes(1 << 19)})
    envs.pins("tiny-a==1.0", "tiny-b==1.0")
    server.num_cut = 2
    _fetch(envs)
    assert _names(envs.project / "house") == NAMES
    assert any(span for _, span in server.seen if span), "the rest was asked for, not all of it"


def test_a_download_that_always_ends_early_is_told_with_its_address(envs: Envs, server: WheelServer) -> None:
    server.num_cut = 1000
    failed = envs.opsctl("env", "fetch", "house")
    assert failed.code == 5
    assert f"{server.address}tiny_a-1.0-py3-none-any.whl cannot be fetched" in failed.err
    assert not (envs.project / "house" / NAMES[0]).exists()


def test_a_file_that_is_not_the_locked_one_is_refused_with_both_hashes(envs: Envs, server: WheelServer) -> None:
    locked = hashlib.sha256((envs.wheels / NAMES[1]).read_bytes()).hexdigest()
    server.changed[NAMES[1]] = b"something else"
    found = hashlib.sha256(b"something else").hexdigest()
    failed = envs.opsctl("env", "fetch", "house")
    assert failed.code == 5
    for words in ("tiny_b-1.0-py3-none-any.whl", locked, found, server.address):
        assert words in failed.err
    assert NAMES[1] not in _names(envs.project / "house")


def test_an_index_that_offers_another_file_is_told_with_both_hashes(envs: Envs, server: WheelServer) -> None:
    locked = server.listed()[NAMES[1]]
    envs.wheel("tiny-b", files={"tiny_b/other.py": b""})
    failed = envs.opsctl("env", "fetch", "house")
    assert failed.code == 5
    for words in ("tiny-b==1.0", NAMES[1], locked, server.listed()[NAMES[1]]):
        assert words in failed.err


def test_fetch_logs_in_and_shows_no_password(envs: Envs, server: WheelServer) -> None:
    server.password = "ana:s3cret-w0rd"
    _from(envs, server.address.replace("//", "//ana:s3cret-w0rd@"))
    done = envs.opsctl("env", "fetch", "house").ok()
    assert "s3cret" not in done.out + done.err
    _from(envs, server.address.replace("//", "//ana:wr0ng@"))
    failed = envs.opsctl("env", "fetch", "other")
    assert (failed.code, "wr0ng" in failed.err) == (5, False)


def test_a_rebuild_from_a_wheelhouse_asks_nobody(envs: Envs, server: WheelServer) -> None:
    _fetch(envs)
    num_asked = len(server.seen)
    assert envs.rebuild("--wheelhouse", "house")["outcome"]["is_new"]
    assert len(server.seen) == num_asked
    assert not (envs.home / "wheelhouse").exists(), "what was brought is built"
    assert envs.verify("--full") == []


def test_a_wheelhouse_that_lacks_something_is_told_before_anything_is_brought(envs: Envs) -> None:
    missing = envs.opsctl("env", "rebuild", "--wheelhouse", "house")
    assert (missing.code, "opsctl env fetch house" in missing.err) == (2, True)
    house = envs.project / "house"
    house.mkdir()
    (house / NAMES[0]).write_bytes((envs.wheels / NAMES[0]).read_bytes())
    (house / NAMES[1]).write_bytes(b"another")
    failed = envs.opsctl("env", "rebuild", "--wheelhouse", "house")
    assert failed.code == 1
    assert f"tiny-b==1.0 (another file: {NAMES[1]})" in failed.err
    assert "tiny-a" not in failed.err
    assert not (envs.home / "wheelhouse").exists()


@pytest.mark.parametrize("is_right", [True, False])
def test_a_wheel_whose_bringing_was_cut_goes_on(envs: Envs, is_right: bool) -> None:
    wheel = (envs.wheels / NAMES[0]).read_bytes()
    half = wheel[: len(wheel) // 2] if is_right else b"x" * 100
    part = envs.home / "wheelhouse" / f".{hashlib.sha256(wheel).hexdigest()}.part"
    part.parent.mkdir()
    part.write_bytes(half)
    done = envs.opsctl("env", "rebuild", "--wheelhouse", str(envs.wheels), "--json")
    assert done.code == (0 if is_right else 5)
    if not is_right:
        assert "arrived with hash" in done.err
        envs.rebuild("--wheelhouse", str(envs.wheels))
    assert envs.verify("--full") == []


# --- a container with no network at all ------------------------------------------------------------


@pytest.fixture(scope="module")
def cut_off() -> Iterator[Place]:
    """A container without any network."""
    with docker_place(network="none") as place:
        yield place


@pytest.mark.docker
def test_a_container_without_network_is_built_from_a_wheelhouse(envs: Envs, cut_off: Place) -> None:
    name = cut_off.container["docker"]
    devices = subprocess.run(["docker", "exec", name, "ls", "/sys/class/net"], capture_output=True, text=True)
    assert devices.stdout.split() == ["lo"], "there is no way out"
    envs.lock.write_text(envs.lock.read_text().replace(f"python = {PYTHON}", "python = 3.11"))
    envs.lock.with_suffix(".in").unlink()
    with cut_off.folder() as folder:
        target = cut_off.settings(home=f"{folder}/home")
        envs.configure(default_target="t", targets={"t": target})
        refused = envs.opsctl("env", "rebuild")
        assert refused.code == 5, "the configured folder is not inside"
        found = envs.rebuild("--wheelhouse", str(envs.wheels))["outcome"]
        assert found["record"]["packages"] == {"tiny-a": "1.0", "tiny-b": "1.0"}
        assert envs.verify("--full") == []
        program = "import tiny_b.inner.work as w; print(w.work())"
        argv = ["docker", "exec", name, f"{found['path']}/bin/python", "-c", program]
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "42\n"
