"""A container restarted in mid-run: the run's status says so, nothing of it blocks the next, and the log is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Ended
from tests.support.docker import docker_place
from tests.support.lxc import lxc_place
from tests.support.place import Place
from tests.support.places import MARKS
from tests.support.until import until

Opsctl = Callable[..., Ended]
PLACES = {"docker": docker_place, "lxc": lxc_place}
pytestmark = pytest.mark.tmux


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=MARKS[kind]) for kind in PLACES])
def own_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A container that these tests alone may restart."""
    with PLACES[request.param]() as place:
        yield place


@pytest.fixture
def home(own_place: Place, project: Path) -> str:
    """A home on the container's own disk, which a restart keeps; the project names it."""
    target = own_place.settings(home="/srv/opsctl")
    (project / "opsctl.yaml").write_text(yaml.safe_dump({"default_target": "t", "targets": {"t": target}}))
    return "/srv/opsctl"


def test_a_run_that_a_restart_ended_is_lost_and_said_so(opsctl: Opsctl, own_place: Place, home: str) -> None:
    words = ("train", "start", "--name", "nap", "--json", "--", "sh", "-c", "echo begun; exec sleep 600")
    run = opsctl(*words).ok().json()
    log = f"{run['folder']}/train.log"
    until(lambda: own_place.outside(log).read_bytes() == b"begun\n")
    own_place.do("restart")

    status = opsctl("train", "status", "nap", "--json").ok().json()
    assert (status["state"], status["verdict"]["verdict"]) == ("lost", "unknown")
    assert "container restarted" in status["message"]
    assert own_place.outside(log).read_bytes() == b"begun\n"
    again = opsctl(*words).ok().json()
    assert again["run_id"] != run["run_id"]
    opsctl("train", "stop", "nap").ok()


def test_a_run_in_a_container_that_stopped_is_out_of_reach_not_crashed(
    opsctl: Opsctl, own_place: Place, home: str
) -> None:
    opsctl("train", "start", "--name", "sleeper", "--", "sleep", "600").ok()
    own_place.do("stop")
    try:
        refused = opsctl("train", "status", "sleeper", "--json")
    finally:
        own_place.do("start")
    assert refused.code == 4
    error = json.loads(refused.err)["error"]
    assert error["kind"] == "ContainerMissing"
    assert "does not run" in error["message"]
    assert opsctl("train", "status", "sleeper", "--json").ok().json()["state"] == "lost"
