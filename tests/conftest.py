"""What every test gets: a home of its own, the installed command, and services by mark."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import docker, lxc

pytest_plugins = ["tests.support.places", "tests.support.sshd"]
REQUIRED = frozenset(filter(None, os.environ.get("OPSCTL_TEST_REQUIRE", "").split(",")))
IS_LONG = bool(os.environ.get("OPSCTL_TEST_LONG"))
REAL_PARTS = frozenset({"contract", "e2e", "fault"})  # folders whose tests wait for real sshd, tmux, Docker and LXC
COMMAND = Path(sys.executable).with_name("opsctl")

# Every test run tries the same examples and times none of them, so that what fails fails because of a change.
# `pytest --hypothesis-profile search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


def _needs(program: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(program) else f"{program} is not installed"


# mark -> why it cannot run here, "" where it can
SERVICES: dict[str, Callable[[], str]] = {
    "tmux": _needs("tmux"),
    "ssh": lambda: "" if Path("/usr/sbin/sshd").exists() else "no sshd",
    "docker": docker.why_not,
    "lxc": lxc.why_not,
    "pyspy": _needs("py-spy"),
    "root": lambda: "" if os.geteuid() == 0 else "not root",
    "torch": lambda: "" if importlib.util.find_spec("torch") else "torch is not installed",
}


def pytest_configure() -> None:
    """Let the commands under test hear Ctrl-C, also where the tests themselves run in a shell's background."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> list[str]:
    """Which services this test run can use, and which must be there."""
    found = {name: probe() or "ok" for name, probe in SERVICES.items()}
    long = "with" if IS_LONG else "without (OPSCTL_TEST_LONG=1 adds them)"
    return [f"services: {found}", f"required: {sorted(REQUIRED)}", f"tests of more than half a minute: {long}"]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # xdist reads the groups in the same hook, and would read them before
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Keep tests that share a compile cache in one process, so that it is filled once; leave the longest to CI.

    Slow ones come first, so that the last minute is not one worker's alone. Those with real parts get a second try, and
    the end of the test run shows the traceback of the first (docs/decisions/067).
    """
    left = [] if IS_LONG else [item for item in items if item.get_closest_marker("long")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    for item in items:
        if "inductor_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("inductor"))
        if item.path.parent.name in REAL_PARTS:
            item.add_marker(pytest.mark.flaky(reruns=1))
    yield
    items.sort(key=lambda item: not any(item.iter_markers("slow")) and not any(item.iter_markers("long")))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip where a service is missing, and fail where it is required."""
    for name, probe in SERVICES.items():
        if item.get_closest_marker(name) is None:
            continue
        if reason := probe():
            message = f"{name}: {reason}"
            if name in REQUIRED:
                pytest.fail(message + " (required by OPSCTL_TEST_REQUIRE)", pytrace=False)
            pytest.skip(message)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user cache for the whole test run: the agent is packed once, not in each test."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME is a folder of this test; no variable of the caller steers opsctl."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("OPSCTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)  # a test runner's own width must not fold what commands print
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return home


@dataclass(frozen=True)
class Ended:
    """One command line that ended."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its stdout as one JSON document."""
        return json.loads(self.out)

    def ok(self) -> Ended:
        """Itself; fails the test if the command failed."""
        assert self.code == 0, f"{self.argv} ended with {self.code}\n{self.out}\n{self.err}"
        return self


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def opsctl(project: Path) -> Callable[..., Ended]:
    """Run the installed command in the project folder: `opsctl("train", "list", "--json")`."""

    def run(*words: str, timeout_s: float = 300.0, **environment: str) -> Ended:
        done = subprocess.run(
            [COMMAND, *words],
            cwd=project,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return Ended(words, done.returncode, done.stdout, done.stderr)

    return run
