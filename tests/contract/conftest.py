"""One body of tests over every host and every kind of container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.config import TargetConfig
from opsctl.config_file import parse
from opsctl.ops.workspace import Workspace, build_target
from opsctl.target.client import AgentClient
from opsctl.target.target import Target
from tests.support.place import Place


@pytest.fixture
def home(place: Place) -> Iterator[str]:
    """A home for opsctl inside, whose name needs quoting."""
    with place.folder() as folder:
        yield f"{folder}/a home"


@pytest.fixture
def settings(host: Any, place: Place, home: str) -> TargetConfig:
    """The target's section of opsctl.yaml."""
    return TargetConfig.model_validate(place.settings(host=host, home=home))


@pytest.fixture
def target(settings: TargetConfig) -> Target:
    return build_target("t", settings)


@pytest.fixture
def client(target: Target) -> AgentClient:
    return AgentClient(target, operator="ana@desk")


@pytest.fixture
def workspace(target: Target, tmp_path: Path) -> Workspace:
    return Workspace(parse("default_target: t\ntargets: {t: {}}\n", tmp_path / "opsctl.yaml"), tmp_path, target)
