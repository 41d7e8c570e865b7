"""What Docker is asked for, from the configuration: GPUs, limits, mounts and the image's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.config import DockerConfig
from opsctl.ops.docker_container import SETTINGS_LABEL, build_arguments, create_arguments


def _arguments(**settings: Any) -> dict[str, Any]:
    return create_arguments("trainer", DockerConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("settings", "driver", "count", "ids", "capabilities"),
    [
        ({}, "", -1, [], [["gpu"]]),
        ({"gpus": [5, "GPU-a1"]}, "", 0, ["5", "GPU-a1"], [["gpu"]]),
        ({"cdi": True}, "cdi", 0, ["nvidia.com/gpu=all"], []),
        ({"cdi": True, "gpus": [5, 6]}, "cdi", 0, ["nvidia.com/gpu=5", "nvidia.com/gpu=6"], []),
    ],
)
def test_gpus_are_asked_for(
    settings: dict[str, Any], driver: str, count: int, ids: list[str], capabilities: list[list[str]]
) -> None:
    (request,) = _arguments(**settings)["device_requests"]
    found = [request[key] for key in ("Driver", "Count", "DeviceIDs", "Capabilities")]
    assert found == [driver, count, ids, capabilities]


def test_no_gpus_are_asked_for_where_none_are_wanted() -> None:
    assert _arguments(gpus="none")["device_requests"] == []


def test_the_container_is_made_for_training() -> None:
    wanted = _arguments(ca_bundle="/srv/ca.crt", restart=False)
    assert (wanted["init"], wanted["shm_size"], wanted["network"]) == (True, "16g", "bridge")
    assert wanted["restart_policy"] == {"Name": "no"}
    assert wanted["volumes"] == [
        "trainer-home:/home/opsctl/.opsctl",
        "trainer-cache:/home/opsctl/.cache",
        "/srv/ca.crt:/etc/ssl/certs/ca-certificates.crt:ro",
    ]
    limits = {one["Name"]: (one["Soft"], one["Hard"]) for one in wanted["ulimits"]}
    assert limits["memlock"] == (-1, -1)


def test_other_settings_have_another_label() -> None:
    labels = {_arguments(**one)["labels"][SETTINGS_LABEL] for one in ({}, {"shm_size": "1g"}, {"gpus": [1]})}
    assert len(labels) == 3
    assert _arguments()["labels"] == _arguments()["labels"]


def test_the_image_is_built_for_the_set_that_is_named() -> None:
    assert build_arguments(DockerConfig(), "cu130") == {"ENV_NAME": "cu130"}
    settings = DockerConfig(base="debian:12", build_args={"WHEELS": "wheels"})
    assert build_arguments(settings, "cpu") == {"ENV_NAME": "cpu", "BASE": "debian:12", "WHEELS": "wheels"}
