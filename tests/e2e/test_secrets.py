"""A job's secret over every way to a target: the job has it, and nothing else ever shows or keeps it."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Ended
from tests.support.place import Place
from tests.support.places import combinations
from tests.support.runs import processes_with
from tests.support.sshd import Sshd
from tests.support.until import until

Opsctl = Callable[..., Ended]
CHOSEN = [one for one in combinations() if one.id in ("ssh-none", "ssh-docker", "ssh-lxc", "local-pct")]
pytestmark = [pytest.mark.tmux, pytest.mark.parametrize("combination", CHOSEN, indirect=True)]

VARIABLE = "MY_TOKEN"
JOB = "import os, time\nprint(len(os.environ['TOKEN']), flush=True)\n"
JOB += "while not os.path.exists('go'): time.sleep(0.02)\nraise SystemExit(9)"


class Searched:
    """Looks at the command line of every process, containers' too, again and again until it is closed."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._is_over = threading.Event()
        self.num_looks = 0
        self.found: set[bytes] = set()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(0.03):
            for process in Path("/proc").glob("[0-9]*"):
                words = _read(process / "cmdline")
                if self._secret in words:
                    self.found.add(words)
            self.num_looks += 1

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone
        return b""


@pytest.fixture
def secret() -> str:
    """A value that stands nowhere else."""
    return f"s3cret-{secrets.token_hex(12)}"


@pytest.fixture
def searched(secret: str) -> Iterator[Searched]:
    """Every command line while the test runs."""
    search = Searched(secret.encode())
    yield search
    search.close()


@pytest.fixture
def home(place: Place) -> Iterator[str]:
    with place.folder() as folder:
        yield f"{folder}/home"


@pytest.fixture
def configured(place: Place, host: Any, home: str, project: Path) -> None:
    """A job with a secret, and one that cannot start."""
    target = place.settings(host=host, home=home)
    job = {"env": False, "code": False, "secrets": {"TOKEN": {"from_env": VARIABLE}}}
    jobs = {
        "keyed": {**job, "command": [target["python"], "-c", JOB]},
        "broken": {**job, "command": ["program-of-nowhere"]},
    }
    (project / "opsctl.yaml").write_text(json.dumps({"default_target": "t", "targets": {"t": target}, "jobs": jobs}))


def _holders(secret: str) -> list[bytes]:
    """The command lines of the processes, apart from clients of this test, in whose environment the secret is."""
    processes = [one for one in Path("/proc").glob("[0-9]*") if secret.encode() in _read(one / "environ")]
    return [words for one in processes if (words := _read(one / "cmdline"))]


def _files_with(secret: str, *folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.usefixtures("configured")
def test_a_secret_is_the_jobs_alone(
    opsctl: Opsctl,
    place: Place,
    home: str,
    secret: str,
    searched: Searched,
    sshd: Sshd,
    project: Path,
    own_home: Path,
    shared_cache: Path,
) -> None:
    said: list[Ended] = []

    def ran(*words: str, **variables: str) -> Ended:
        said.append(opsctl(*words, **variables))
        return said[-1]

    broken = ran("train", "start", "broken", **{VARIABLE: secret})
    assert broken.code == 6
    run = ran("train", "start", "keyed", "--json", **{VARIABLE: secret}).ok().json()
    folder = place.outside(run["folder"])
    until(lambda: (folder / "train.log").read_bytes() == f"{len(secret)}\n".encode())
    assert [words.split(b"\0")[1] for words in _holders(secret)] == [b"-c"]
    assert len(processes_with(f"TOKEN={secret}")) == 1

    tmux = ("tmux", "-S", run["run"]["socket"])
    for words in (("show-environment", "-g"), ("show-environment",), ("capture-pane", "-p", "-S", "-")):
        assert ran("exec", "-n", "--", *tmux, *words).ok().out
    ran("train", "status", "--json").ok()
    ran("train", "list", "--json").ok()
    ran("status", "--json").ok()
    refused = ran("train", "start", "keyed", **{VARIABLE: secret})
    assert refused.code == 8
    with subprocess.Popen(
        [COMMAND, "watch", "--json"], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as watch:
        (folder / "go").touch()
        seen, _ = watch.communicate(timeout=60)
    assert watch.returncode == 1
    ran("train", "logs")
    ran("train", "status", "--json")

    assert [ended.argv for ended in said if secret in ended.out + ended.err] == []
    assert secret not in seen
    assert searched.found == set()
    assert searched.num_looks > 10
    assert _files_with(secret, place.outside(home), project, own_home, shared_cache, sshd.folder) == []
    assert not (folder / "secrets.fifo").exists()
