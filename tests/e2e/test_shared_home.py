"""Two Unix users with one home on a target: a folder of their group, in which each works with what the other made."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.config import TargetConfig
from opsctl.errors import CheckFailed
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
from tests.conftest import Ended
from tests.support.docker import docker_place
from tests.support.place import Place, ran
from tests.support.runs import is_gone, processes_with
from tests.support.until import until
from tests.support.wheels import build_wheel

Opsctl = Callable[..., Ended]
pytestmark = [pytest.mark.tmux, pytest.mark.docker]

HOME = "/srv/team"
# on SIGTERM it ends as a trainer does that has saved a checkpoint
TRAINER = "import signal, sys, time, alpha\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
TRAINER += "open('weights', 'w').close()\nprint('alpha', alpha.VERSION, flush=True)\ntime.sleep(600)\n"
JOB = {"command": ["python", "-c", TRAINER], "code": True}


@pytest.fixture(scope="module")
def own_place() -> Iterator[Place]:
    """A container with the users ana and ben, and the folder of their group as docs/operators.md makes it."""
    with docker_place() as place:
        name = place.container["docker"]
        for words in (
            ("groupadd", "team"),
            ("useradd", "-m", "-G", "team", "ana"),
            ("useradd", "-m", "-G", "team", "ben"),
            ("useradd", "-m", "eve"),
            ("install", "-d", "-g", "team", "-m", "2770", HOME),
        ):
            ran("docker", "exec", name, *words)
        yield place


def _settings(place: Place, user: str) -> dict[str, Any]:
    return place.as_user(user).settings(home=HOME)


@pytest.fixture
def configured(own_place: Place, project: Path) -> None:
    """A target for each user, a pinned set of one wheel, and a job that imports it."""
    wheel = build_wheel(project / "wheels", "alpha", "1.5")
    shutil.copytree(project / "wheels", own_place.outside("/srv/wheels"), dirs_exist_ok=True)
    own_place.outside("/srv/index").mkdir(exist_ok=True)
    (project / "env").mkdir()
    (project / "env" / "tiny.in").write_text("# opsctl: python = 3.11\nalpha==1.5\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    row = f"# opsctl: python = 3.11\n# opsctl: direct = alpha\nalpha==1.5 --hash=sha256:{digest}\n"
    (project / "env" / "tiny.lock").write_text(row)
    (project / "trainer").mkdir()
    (project / "trainer" / "code.py").write_text("")
    settings = {
        "default_target": "ana",
        "targets": {user: _settings(own_place, user) for user in ("ana", "ben", "eve")},
        "env": {"name": "tiny", "find_links": ["/srv/wheels"], "index_url": "file:///srv/index"},
        "code": {"paths": ["trainer"]},
        "jobs": {"nap": JOB},
    }
    (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))


def _not_the_groups(root: Path, gid: int) -> list[str]:
    """What lies below `root` and is another group's, or open to all, or closed to the group."""
    found = []
    for path in (root, *root.rglob("*")):
        seen = path.lstat()
        mode = stat.S_IMODE(seen.st_mode)
        is_open = not stat.S_ISREG(seen.st_mode) or mode & 0o040
        if seen.st_gid != gid or not is_open or (path == root and mode & 0o007):
            found.append(f"{path.relative_to(root)} {seen.st_gid} {mode:o}")
    return found


@pytest.mark.usefixtures("configured")
def test_what_one_made_the_other_uses(opsctl: Opsctl, own_place: Place) -> None:
    opsctl("env", "rebuild").ok()
    again = opsctl("env", "rebuild", "-t", "ben", "--json").ok().json()
    assert again["run_id"] == "", "what stands and verifies is not built anew"
    run = opsctl("train", "start", "nap", "--json", LOGNAME="ana").ok().json()
    folder = own_place.outside(run["folder"])
    until(lambda: b"alpha 1.5\n" in (folder / "train.log").read_bytes())

    status = opsctl("train", "status", "nap", "-t", "ben", "--json").ok().json()
    assert status["state"] == "running"
    assert status["run"]["spec"]["operator"].startswith("ana@")
    assert opsctl("train", "logs", "nap", "-t", "ben").ok().out == "alpha 1.5\n"
    refused = opsctl("train", "start", "nap", "-t", "ben", LOGNAME="ben")
    assert refused.code == 8
    assert f"run {run['run_id']} of ana@" in refused.err
    ben = AgentClient(build_target("ben", TargetConfig.model_validate(_settings(own_place, "ben"))), operator="ben")
    with pytest.raises(CheckFailed, match="Unix user ana's"):
        ben.call("run-attach", {"run": "nap"})

    stopped = opsctl("train", "stop", "nap", "-t", "ben", "--json").ok().json()
    assert (stopped["state"], stopped["verdict"]["verdict"]) == ("over", "stopped")
    assert [one["exit_code"] for one in json.loads((folder / "exit.json").read_text())["attempts"]] == [75]
    assert processes_with(f"OPSCTL_RUN_ID={run['run_id']}") == []
    mine = opsctl("train", "start", "nap", "-t", "ben", "--json", LOGNAME="ben").ok().json()
    opsctl("train", "stop", "nap").ok()
    assert own_place.outside(mine["folder"]).stat().st_uid != folder.stat().st_uid
    home = own_place.outside(HOME)
    assert _not_the_groups(home, home.stat().st_gid) == []
    assert [one for one in opsctl("doctor", "-t", "ben", "--json").json()["checks"] if one["ok"] is False] == []


@pytest.mark.usefixtures("configured")
def test_half_of_the_code_of_another_user_is_in_nobodys_way(opsctl: Opsctl, own_place: Place, project: Path) -> None:
    left = f"{HOME}/code/.0123456789ab.7.part"
    script = f"umask 007; mkdir -p {left}/trainer; chmod 555 {left}; touch -d 2020-01-01 {left}"
    ran("docker", "exec", "-u", "ben", own_place.container["docker"], "sh", "-c", script)
    settings = yaml.safe_load((project / "opsctl.yaml").read_text())
    settings["jobs"]["bare"] = {"command": ["true"], "env": False, "code": True}
    (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))
    (project / "trainer" / "code.py").write_text("NEW = True\n")
    opsctl("train", "start", "bare").ok()
    assert own_place.outside(left).is_dir()
    opsctl("train", "wait", "bare").ok()
    own_place.outside(left).chmod(0o700)
    shutil.rmtree(own_place.outside(left))


@pytest.mark.usefixtures("configured")
def test_who_is_not_of_the_group_is_kept_out(opsctl: Opsctl) -> None:
    opsctl("train", "list").ok()
    refused = opsctl("train", "list", "-t", "eve")
    assert refused.code == 5
    assert "Permission denied" in refused.err
    assert "set `home:`" in refused.err


@pytest.mark.usefixtures("configured")
def test_a_job_of_another_user_whose_recorder_died_is_not_called_ended(opsctl: Opsctl, own_place: Place) -> None:
    words = ("train", "start", "--name", "orphan", "--json", "--", "sh", "-c", "trap '' HUP; sleep 600 & wait; wait")
    run = opsctl(*words).ok().json()
    recorder = run["run"]["recorder"]["pid"]
    ran("docker", "exec", own_place.container["docker"], "kill", "-9", str(recorder))
    until(lambda: opsctl("train", "status", "orphan", "--json").json()["state"] == "unwatched")
    refused = opsctl("train", "stop", "orphan", "-t", "ben")
    assert refused.code == 1
    assert "Unix user ana, who alone may end it" in refused.err
    members = processes_with(f"OPSCTL_RUN_ID={run['run_id']}")
    assert members
    opsctl("train", "stop", "orphan").ok()
    assert all(map(is_gone, members))
