"""`opsctl init USER@HOST`: one command from nothing to a target that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.config_file import load
from tests.conftest import Ended
from tests.support.place import Place
from tests.support.sshd import Sshd, free_port

pytestmark = pytest.mark.ssh


def test_a_host_is_looked_at_and_its_file_works(sshd: Sshd, project: Path, opsctl: Callable[..., Ended]) -> None:
    ended = opsctl("init", "box", "--ssh-config", str(sshd.ssh_config)).ok()
    assert "target box:" in ended.out
    config = load(project / "opsctl.yaml")
    assert config.default_target == "box"
    assert opsctl("exec", "--", "sh", "-c", "echo $SSH_CONNECTION").ok().out.split()[-1] == str(sshd.port)
    again = opsctl("init", "nowhere.invalid").ok()
    assert "kept" in again.out


@pytest.mark.docker
def test_its_containers_are_found(sshd: Sshd, docker_place: Place, project: Path, opsctl: Callable[..., Ended]) -> None:
    name = docker_place.container["docker"]
    words = ("init", "box", "--ssh-config", str(sshd.ssh_config), "--docker")
    missing = opsctl(*words, f"{name}x")
    assert missing.code == 2
    assert name in missing.err
    assert not (project / "opsctl.yaml").exists()
    written = opsctl(*words, name, "--json").ok().json()
    assert {"kind": "docker", "name": name}.items() <= next(
        one for one in written["survey"]["containers"] if one["name"] == name
    ).items()
    assert opsctl("exec", "--", "test", "-f", "/.dockerenv").code == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), 2),
        (("--local", "box"), 2),
        (("--local", "--docker", "x"), 2),
        (("box", "--docker", "x", "--pct", "200"), 2),
        (("--", "-oProxyCommand=false"), 3),
        (("root@127.0.0.1", "--port", "PORT"), 4),
    ],
)
def test_nothing_is_written_for_nonsense(
    project: Path, opsctl: Callable[..., Ended], words: tuple[str, ...], code: int
) -> None:
    ended = opsctl("init", *(word.replace("PORT", str(free_port())) for word in words))
    assert ended.code == code
    assert ended.err.startswith("error:")
    assert list(project.iterdir()) == []
