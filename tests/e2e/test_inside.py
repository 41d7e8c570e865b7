"""The pieces of the main job inside containers, as an unprivileged user: environment, run, log, stop, exit record."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import COMMAND, Ended
from tests.support.place import USER, Place
from tests.support.places import combinations
from tests.support.runs import processes_with
from tests.support.terminal import Terminal
from tests.support.until import until
from tests.support.wheels import build_wheel

Opsctl = Callable[..., Ended]
# each host and each container once: what joins them is the contract's affair
CHOSEN = [one for one in combinations() if one.id in ("ssh-docker", "ssh-lxc", "local-pct")]
pytestmark = [pytest.mark.tmux, pytest.mark.parametrize("combination", CHOSEN, indirect=True)]

# on SIGTERM it ends as a trainer does that has saved a checkpoint
TRAINER = "import signal, sys, time, alpha\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
TRAINER += "print('alpha', alpha.VERSION, flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def home(place: Place) -> Iterator[str]:
    """A home of the unprivileged user inside; gone at the end."""
    with place.folder() as folder:
        place.outside(folder).chmod(0o777)
        yield f"{folder}/home"


@pytest.fixture
def sources(place: Place, project: Path) -> Iterator[dict[str, Any]]:
    """Where a rebuild finds one wheel: in a folder inside, beside an empty index, so that nothing asks the network."""
    inside = f"/tmp/opsctl-{secrets.token_hex(4)}"
    build_wheel(project / "wheels", "alpha", "1.5")
    shutil.copytree(project / "wheels", place.outside(f"{inside}/wheels"))
    place.outside(f"{inside}/index").mkdir()
    yield {"find_links": [f"{inside}/wheels"], "index_url": f"file://{inside}/index"}
    shutil.rmtree(place.outside(inside))


@pytest.fixture
def configured(place: Place, host: Any, home: str, project: Path, sources: dict[str, Any]) -> None:
    """A project with a set of one wheel, and a job that imports it."""
    (wheel,) = (project / "wheels").iterdir()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (project / "env").mkdir()
    (project / "env" / "tiny.in").write_text("# opsctl: python = 3.11\nalpha==1.5\n")
    row = f"# opsctl: python = 3.11\n# opsctl: direct = alpha\nalpha==1.5 --hash=sha256:{digest}\n"
    (project / "env" / "tiny.lock").write_text(row)
    settings = {
        "default_target": "t",
        "targets": {"t": place.as_user(USER).settings(host=host, home=home)},
        "env": {"name": "tiny", **sources},
        "jobs": {"nap": {"command": ["python", "-c", TRAINER], "code": False}},
    }
    (project / "opsctl.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.usefixtures("configured")
def test_a_run_in_its_environment_leaves_log_and_exit_record(opsctl: Opsctl, place: Place, home: str) -> None:
    opsctl("env", "rebuild").ok()
    assert opsctl("env", "verify", "--json").ok().json()["is_clean"] is True
    run = opsctl("train", "start", "nap", "--json").ok().json()
    folder = place.outside(run["folder"])
    until(lambda: b"alpha 1.5\n" in (folder / "train.log").read_bytes())
    assert opsctl("train", "logs").ok().out == "alpha 1.5\n"
    opsctl("train", "stop", "nap").ok()
    record = json.loads((folder / "exit.json").read_text())
    assert [attempt["exit_code"] for attempt in record["attempts"]] == [75]
    assert record["verdict"]["verdict"] == "stopped"
    assert opsctl("train", "status", "nap", "--json").ok().json()["state"] == "over"
    assert processes_with(f"OPSCTL_RUN_ID={record['run_id']}") == []
    assert place.outside(home).stat().st_uid != 0


@pytest.mark.usefixtures("configured")
def test_a_person_can_sit_at_the_run(opsctl: Opsctl, project: Path, tmp_path: Path) -> None:
    opsctl("train", "start", "--name", "sit", "--", "sh", "-c", "echo hello-inside; exec sleep 600").ok()
    argv = (str(COMMAND), "train", "attach", "sit")
    terminal = Terminal(argv, folder=project, socket=tmp_path / "t", width=100, height=30, TERM="xterm-ghostty")
    try:
        terminal.wait_for("hello-inside")
        terminal.press("C-b")
        terminal.press("d")
        terminal.wait_for("status=0")
    finally:
        terminal.close()
        opsctl("train", "stop", "sit").ok()
