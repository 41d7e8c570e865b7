"""A container restarted in mid-run: the run's status says so, nothing of it blocks the next, and the log is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Ended
from tests.support.docker import docker_place
from tests.support.lxc import lxc_place
from tests.support.place import Place
from tests.support.places import combinations, together
from tests.support.until import until
from tests.support.watching import Watch, watch

__all__ = ["watch"]
Opsctl = Callable[..., Ended]
PLACES = {"docker": docker_place, "lxc": lxc_place}
pytestmark = pytest.mark.tmux


@pytest.fixture(scope="module", params=together(combinations(PLACES)))
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The host and the container of these tests."""
    return request.param  # type: ignore[no-any-return]  # pytest's parameters have no type


@pytest.fixture(scope="module")
def own_place(combination: tuple[str, str]) -> Iterator[Place]:
    """A container that these tests alone may restart."""
    with PLACES[combination[1]]() as place:
        yield place


@pytest.fixture
def home(own_place: Place, host: Any, project: Path) -> str:
    """A home on the container's own disk, which a restart keeps; the project names it."""
    target = own_place.settings(host=host, home="/srv/opsctl")
    (project / "opsctl.yaml").write_text(yaml.safe_dump({"default_target": "t", "targets": {"t": target}}))
    return "/srv/opsctl"


def test_a_run_that_a_restart_ended_is_lost_and_said_so(
    opsctl: Opsctl, own_place: Place, home: str, watch: Callable[..., Watch]
) -> None:
    words = ("train", "start", "--name", "nap", "--json", "--", "sh", "-c", "echo begun; exec sleep 600")
    run = opsctl(*words).ok().json()
    log = f"{run['folder']}/train.log"
    until(lambda: own_place.outside(log).read_bytes() == b"begun\n")
    seen = watch("nap")
    seen.wait_for("caught_up")
    own_place.do("restart")

    assert seen.ended() == 4, "the container does not run, or its run is lost: as the watch looks"
    assert "crashed" not in str(seen.rows("verdict"))
    status = opsctl("train", "status", "nap", "--json").ok().json()
    assert (status["state"], status["verdict"]["verdict"]) == ("lost", "unknown")
    assert "container restarted" in status["message"]
    assert own_place.outside(log).read_bytes() == b"begun\n"
    again = opsctl(*words).ok().json()
    assert again["run_id"] != run["run_id"]
    opsctl("train", "stop", "nap").ok()


def test_a_run_in_a_container_that_stopped_is_out_of_reach_not_crashed(
    opsctl: Opsctl, own_place: Place, home: str, watch: Callable[..., Watch]
) -> None:
    opsctl("train", "start", "--name", "sleeper", "--", "sleep", "600").ok()
    seen = watch("sleeper")
    seen.wait_for("caught_up")
    own_place.do("stop")
    try:
        assert seen.ended() == 4, "a watch does not wait for what only a person starts again"
        refused = opsctl("train", "status", "sleeper", "--json")
    finally:
        own_place.do("start")
    assert refused.code == 4
    error = json.loads(refused.err)["error"]
    assert error["kind"] == "ContainerMissing"
    assert "does not run" in error["message"]
    assert opsctl("train", "status", "sleeper", "--json").ok().json()["state"] == "lost"
