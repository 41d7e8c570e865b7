"""Fixtures: every host with every kind of container; each starts once a test run, when the first test asks for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.support.docker import docker_place as running_docker
from tests.support.lxc import lxc_place as running_lxc
from tests.support.lxc import pct_place as running_pct
from tests.support.place import Place

KINDS = ("none", "docker", "lxc", "pct")
# the service that a kind needs, as a mark
MARKS: dict[str, tuple[pytest.MarkDecorator, ...]] = {
    "none": (),
    "docker": (pytest.mark.docker,),
    "lxc": (pytest.mark.lxc,),
    "pct": (pytest.mark.lxc,),
}


HOSTS: dict[str, tuple[pytest.MarkDecorator, ...]] = {"local": (), "ssh": (pytest.mark.ssh,)}


def combinations(kinds: Iterable[str] = KINDS) -> list[Any]:
    """Every host with each of these containers, as parameters with the marks of the services that they need."""
    return [
        pytest.param((host, kind), id=f"{host}-{kind}", marks=[*HOSTS[host], *MARKS[kind]])
        for host in HOSTS
        for kind in kinds
    ]


def together(chosen: Iterable[Any]) -> list[Any]:
    """The same parameters, each of which stays in one process of a parallel test run: so it is set up once."""
    return [
        pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.xdist_group(f"container {one.id}")])
        for one in chosen
    ]


@pytest.fixture(scope="session")
def none_place() -> Place:
    """This machine itself."""
    return Place("none", python=sys.executable)


@pytest.fixture(scope="session")
def docker_place() -> Iterator[Place]:
    """A Docker container."""
    with running_docker() as place:
        yield place


@pytest.fixture(scope="session")
def lxc_place() -> Iterator[Place]:
    """An LXC container."""
    with running_lxc() as place:
        yield place


@pytest.fixture(scope="session")
def pct_place() -> Iterator[Place]:
    """An LXC container behind the stand-in `pct`."""
    with running_pct() as place:
        yield place


@pytest.fixture(params=combinations())
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The host and the container of this test."""
    return request.param  # type: ignore[no-any-return]  # pytest's parameters have no type


@pytest.fixture
def place(combination: tuple[str, str], request: pytest.FixtureRequest) -> Place:
    """Where the target's files and processes are."""
    return request.getfixturevalue(f"{combination[1]}_place")  # type: ignore[no-any-return]  # found by name


@pytest.fixture
def host(combination: tuple[str, str], request: pytest.FixtureRequest) -> Any:
    """The value of `host:` in opsctl.yaml."""
    return request.getfixturevalue("sshd").settings if combination[0] == "ssh" else combination[0]
