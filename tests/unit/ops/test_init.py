"""The first opsctl.yaml: complete, valid, and about the host that was looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.config_file import parse
from opsctl.errors import UsageError
from opsctl.ops.init import _check, example, target_name, text_for
from opsctl.ops.survey import FoundContainer, Gpu
from opsctl.ops.survey import parse as parse_survey

OUTPUT = """\
\1user
ana
\1sudo
yes
\1system
Debian GNU/Linux 12 (bookworm)
\1python
3.11.2
\1gpu
0, NVIDIA H200, 143771
1, NVIDIA H200, 143771
Unable to determine the device handle for gpu 0000:0C:00.0: Unknown Error
\1docker
trainer|running|acme/gpu:1.2
old|exited|debian:12
\1lxc
gpu0 RUNNING
\1pct
200        running                 drafter
201        stopped    backup       web \x1b[31mred
\1end
"""
FOUND = parse_survey(OUTPUT)


def test_what_the_script_prints_is_read() -> None:
    assert (FOUND.user, FOUND.can_sudo, FOUND.python) == ("ana", True, "3.11.2")
    assert FOUND.gpus == (Gpu(0, "NVIDIA H200", 143771), Gpu(1, "NVIDIA H200", 143771))
    assert FOUND.containers[:4] == (
        FoundContainer("docker", "trainer", "running", "acme/gpu:1.2"),
        FoundContainer("docker", "old", "exited", "debian:12"),
        FoundContainer("lxc", "gpu0", "running"),
        FoundContainer("pct", "200", "running", "drafter"),
    )
    assert "\x1b" not in FOUND.containers[4].note


def test_a_bare_host_is_one_with_nothing() -> None:
    found = parse_survey("\1user\nana\n\1sudo\n\1system\n\1python\n\1gpu\n\1docker\n\1lxc\n\1pct\n\1end\n")
    assert (found.can_sudo, found.gpus, found.containers, found.python) == (False, (), (), "")


@pytest.mark.parametrize(
    ("host", "container"),
    [
        ({"ssh": "root@gpu7.example.org"}, {}),
        ({"ssh": "box", "port": 2222, "key_file": "/k '\"", "host_keys": "accept-new"}, {"docker": "trainer"}),
        ({"ssh": "ana@10.0.0.7", "jump": "gate"}, {"pct": 200}),
    ],
)
def test_the_file_is_valid_and_keeps_all_else(host: dict[str, Any], container: dict[str, Any]) -> None:
    name = target_name(host, container)
    text = text_for(name, host, container, FOUND)
    config = parse(text, Path("opsctl.yaml"))
    assert config.default_target == name
    target = config.targets[name]
    assert {key: getattr(target.host, key) for key in host} == host
    assert {key: getattr(target.container, key) for key in container} == container
    assert target.become == (("sudo", "-n") if "pct" in container else ())
    others = {"targets", "default_target"}
    assert config.model_dump(exclude=others) == parse(example(), Path("x")).model_dump(exclude=others)
    assert "# GPU 1: NVIDIA H200, 143771 MiB" in text
    assert "# container: {pct: 200}  (running, drafter)" in text


def test_a_container_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        _check({"docker": "trianer"}, FOUND, "gpu7")
    assert caught.value.hint == "did you mean 'trainer'?"
    _check({"pct": 200}, FOUND, "gpu7")
    _check({"lxc": "unlisted"}, parse_survey("\1lxc\n\1end\n"), "gpu7")  # nobody may list them: not our word
