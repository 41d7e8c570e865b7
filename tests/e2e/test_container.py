"""`opsctl container` on a real engine and real LXC: up, down, status and build, by the installed command."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config import DOCKER_ULIMITS
from tests.conftest import Ended
from tests.support.docker import IMAGE
from tests.support.lxc import lxc_place, pct_place
from tests.support.place import Place, ran
from tests.support.places import HOSTS

Opsctl = Callable[..., Ended]


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a Docker container that nobody has made yet; it and its volume are gone at the end."""
    name = f"opsctl-tests-{secrets.token_hex(4)}"
    yield name
    for argv in (("docker", "rm", "-f", name), ("docker", "volume", "rm", "-f", f"{name}-home")):
        subprocess.run(argv, capture_output=True, timeout=300)


@pytest.fixture
def configure(project: Path, name: str) -> Callable[..., None]:
    """Write opsctl.yaml for the Docker container, with changes to the section `docker`."""

    def write(*, host: Any = "local", **docker: Any) -> None:
        target = {"host": host, "container": {"docker": name}, "home": "/root/.opsctl"}
        plain = {"image": IMAGE, "gpus": "none", "shm_size": "96m", "ulimits": {}, "restart": "no"}
        section = {**plain, "volumes": ["{name}-home:/root/.opsctl"], **docker}
        (project / "opsctl.yaml").write_text(
            yaml.safe_dump({"default_target": "d", "targets": {"d": target}, "docker": section})
        )

    write()
    return write


def _inspect(name: str) -> dict[str, Any]:
    return dict(json.loads(ran("docker", "container", "inspect", name))[0])


def _did(ended: Ended) -> tuple[str, str]:
    report = ended.ok().json()
    return report["did"], report["state"]


@pytest.mark.docker
@pytest.mark.parametrize("host", [pytest.param(host, marks=marks) for host, marks in HOSTS.items()])
def test_up_makes_starts_and_resumes_as_it_needs(
    opsctl: Opsctl, configure: Callable[..., None], name: str, host: str, request: pytest.FixtureRequest
) -> None:
    configure(host="local" if host == "local" else request.getfixturevalue("sshd").settings)
    assert opsctl("container", "status").code == 1
    assert _did(opsctl("container", "up", "--json")) == ("created", "running")
    made = _inspect(name)["HostConfig"]
    assert (made["Init"], made["ShmSize"]) == (True, 96 << 20)
    assert _did(opsctl("container", "up", "--json")) == ("", "running")
    ran("docker", "pause", name)
    assert _did(opsctl("container", "up", "--json")) == ("resumed", "running")
    ran("docker", "kill", name)
    assert _did(opsctl("container", "up", "--json")) == ("started", "running")
    assert _did(opsctl("container", "down", "--json")) == ("removed", "missing")
    assert name not in ran("docker", "ps", "-a", "--format", "{{.Names}}")
    assert f"{name}-home" in ran("docker", "volume", "ls", "-q")


@pytest.mark.docker
def test_status_shows_what_a_container_lacks(opsctl: Opsctl, configure: Callable[..., None]) -> None:
    opsctl("container", "up").ok()
    configure(shm_size="1g")
    found = opsctl("container", "status", "--json")
    assert "made by other settings" in found.json()["notes"][0]
    checks = {check["name"]: check["ok"] for check in found.json()["checks"]}
    assert checks == {"terminals": True, "shared memory": True, "gpu devices": True, "driver": True}


@pytest.mark.docker
@pytest.mark.tmux
@pytest.mark.usefixtures("configure")
def test_down_spares_a_container_in_which_a_run_lives(opsctl: Opsctl) -> None:
    opsctl("container", "up").ok()
    opsctl("train", "start", "--name", "nap", "--", "sleep", "600").ok()
    refused = opsctl("container", "down")
    assert refused.code == 8
    assert "nap-" in refused.err
    assert "--force" in refused.err
    assert _did(opsctl("container", "down", "--force", "--json")) == ("removed", "missing")


def _may_set(limit: str) -> bool:
    """Whether this engine may give a container this limit: one that runs in a container itself often may not."""
    argv = ("docker", "run", "--rm", "--ulimit", limit, IMAGE, "true")
    return subprocess.run(argv, capture_output=True, timeout=300).returncode == 0


@pytest.mark.docker
def test_default_limits_that_an_engine_refuses_are_left_out_and_said(
    opsctl: Opsctl, configure: Callable[..., None], name: str
) -> None:
    refused = [key for key, limit in sorted(DOCKER_ULIMITS.items()) if not _may_set(f"{key}={limit}")]
    configure(ulimits=DOCKER_ULIMITS)
    notes = opsctl("container", "up", "--json").ok().json()["notes"]
    assert notes == opsctl("container", "status", "--json").json()["notes"]
    told = f"may not set the default ulimits {', '.join(refused)}:"
    assert [told in note for note in notes] == ([True] if refused else [])
    given = {limit["Name"] for limit in _inspect(name)["HostConfig"]["Ulimits"] or ()}
    assert given == DOCKER_ULIMITS.keys() - refused


@pytest.mark.docker
def test_a_limit_of_ones_own_that_an_engine_refuses_is_an_error(
    opsctl: Opsctl, configure: Callable[..., None], name: str
) -> None:
    configure(ulimits={"nofile": 2**31})  # above the kernel's fs.nr_open
    refused = opsctl("container", "up")
    assert refused.code == 5
    assert "set `docker.ulimits` to what it allows" in refused.err
    assert name not in ran("docker", "ps", "-a", "--format", "{{.Names}}")


@pytest.mark.docker
def test_a_container_that_cannot_start_is_not_left_behind(
    opsctl: Opsctl, configure: Callable[..., None], name: str
) -> None:
    configure(gpus="all")
    refused = opsctl("container", "up")
    assert refused.code == 5
    assert "NVIDIA container toolkit" in refused.err
    assert name not in ran("docker", "ps", "-a", "--format", "{{.Names}}")


@pytest.mark.docker
def test_an_image_that_is_not_there_is_named(opsctl: Opsctl, configure: Callable[..., None]) -> None:
    configure(image="opsctl-of-nowhere")
    refused = opsctl("container", "up")
    assert refused.code == 5
    assert "opsctl-of-nowhere is not on the host" in refused.err
    assert "`opsctl container build`" in refused.err


@pytest.mark.docker
@pytest.mark.usefixtures("configure")
def test_an_engine_that_does_not_answer_is_told(opsctl: Opsctl, tmp_path: Path) -> None:
    refused = opsctl("container", "up", DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    assert refused.code == 4
    assert "no Docker engine answers on this machine" in refused.err


@pytest.mark.docker
def test_build_makes_the_image_and_shows_the_step_that_fails(
    opsctl: Opsctl, configure: Callable[..., None], project: Path, name: str
) -> None:
    configure(image=f"{name}-image", base=IMAGE, build_args={"SAID": "hello there"})
    dockerfile = project / "Dockerfile"
    dockerfile.write_text("ARG BASE\nFROM ${BASE}\nARG ENV_NAME\nARG SAID\nRUN test $ENV_NAME = cpu && echo $SAID\n")
    built = opsctl("container", "build", "--json")
    assert built.ok().json()["image"] == f"{name}-image"
    assert "hello there" in built.err
    dockerfile.write_text("ARG BASE\nFROM ${BASE}\nRUN echo on the way; exit 3\n")
    failed = opsctl("container", "build")
    assert failed.code == 5
    assert "exit 3" in failed.err
    ran("docker", "image", "rm", f"{name}-image")


@pytest.mark.lxc
@pytest.mark.parametrize("running", [lxc_place, pct_place], ids=["lxc", "pct"])
def test_a_system_container_is_stopped_and_started_but_never_made(
    opsctl: Opsctl, project: Path, running: Callable[[], Any]
) -> None:
    def write(place: Place, **changes: Any) -> None:
        target = place.settings(home="/tmp/opsctl", **changes)
        (project / "opsctl.yaml").write_text(yaml.safe_dump({"default_target": "t", "targets": {"t": target}}))

    with running() as place:
        write(place)
        assert _did(opsctl("container", "up", "--json")) == ("", "running")
        assert _did(opsctl("container", "down", "--json")) == ("stopped", "stopped")
        assert opsctl("container", "status", "--json").json()["state"] == "stopped"
        assert opsctl("train", "list").code == 4
        assert _did(opsctl("container", "up", "--json")) == ("started", "running")
        opsctl("container", "status").ok()
        write(place, container={place.kind: 999_999_999 if place.kind == "pct" else "of-nowhere"})
        missing = opsctl("container", "up")
    assert missing.code == 4
    assert "make it first" in missing.err


def test_a_target_without_a_container_has_none_to_bring_up(opsctl: Opsctl, project: Path) -> None:
    (project / "opsctl.yaml").write_text("default_target: here\ntargets: {here: {}}\n")
    refused = opsctl("container", "up")
    assert refused.code == 2
    assert "has no container" in refused.err
