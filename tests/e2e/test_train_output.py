"""The log holds what the job wrote, byte for byte, and its time index replays what detection saw."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.detect import lines, watcher
from opsctl.records.events import Line
from tests.conftest import COMMAND
from tests.support.runs import Runs
from tests.support.until import until

pytestmark = pytest.mark.tmux


def _job(folder: Path, text: str) -> tuple[str, str]:
    script = folder / "job.py"
    script.write_text(text)
    return sys.executable, str(script)


OUTPUTS = {
    "every byte": "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 40)",
    "burst of 5 MB": "import sys\nfor n in range(50000): sys.stdout.write(f'{n:06d} ' + 'x' * 92 + '\\n')",
    "one long row": "import sys\nsys.stdout.write('y' * 3_000_000)",
    "no newline at the end": "import sys\nsys.stdout.write('a\\nb\\n\\nc')",
    "carriage returns before newlines": "import sys\nsys.stdout.write('a\\r\\nb\\r\\r\\n' * 1000)",
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_log_is_whole(runs: Runs, tmp_path: Path, opsctl: Callable[..., Any], output: str) -> None:
    argv = _job(tmp_path, OUTPUTS[output])
    expected = subprocess.run(argv, capture_output=True, check=True).stdout
    run = runs.start(*argv)
    assert runs.ended(run)["log_bytes"] == len(expected)
    assert hashlib.sha256(runs.log(run)).digest() == hashlib.sha256(expected).digest()
    shown = subprocess.run([COMMAND, "train", "logs"], cwd=runs.project, capture_output=True, check=True).stdout
    assert hashlib.sha256(shown).digest() == hashlib.sha256(expected).digest()


def test_progress_bar_is_thinned_to_one_a_second(runs: Runs, tmp_path: Path) -> None:
    bar = """
import os, sys, time
n = 0
while not os.path.exists("enough"):
    n += 1
    sys.stdout.write(f"\\r{n:3d}% |{'#' * (n // 10)}|")
    sys.stdout.flush()
    time.sleep(0.01)
sys.stdout.write("\\r999% |whole|\\ndone\\n")
"""
    run = runs.start(*_job(tmp_path, bar))
    until(lambda: runs.log(run).count(b"%") >= 3)
    (runs.folder(run) / "enough").touch()
    (attempt,) = runs.ended(run)["attempts"]
    log = runs.log(run)
    assert log.endswith(b"\r999% |whole|\ndone\n")
    assert log.count(b"%") <= 4 + attempt["ended"] - attempt["started"], "one a second, the first and the last"


def test_index_replays_the_live_detection(runs: Runs, tmp_path: Path) -> None:
    job = """
import sys, time
for n in range(40):
    print(f"step {n}/40 loss={1 / (n + 1):.3f}", flush=True)
    sys.stdout.write("partial ")
    sys.stdout.flush()
    time.sleep(0.02)
"""
    run = runs.start(*_job(tmp_path, job))
    record = runs.ended(run)
    log = runs.log(run)
    index = [row.split() for row in (runs.folder(run) / "train.log.idx").read_text().splitlines()]
    starts = [int(offset) for offset, _ in index]
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    state, seen = lines.LineState(), []
    for (start, moment), end in zip(index, [*starts[1:], len(log)], strict=True):
        state, rows = lines.split(state, log[int(start) : end], float(moment))
        seen += rows
    state, rest = lines.flush(state, float(index[-1][1]))
    folded = watcher.start(watcher.Context(), float(index[0][1]))
    for row in (*seen, *rest):
        assert isinstance(row, Line)
        folded, _ = watcher.observe(folded, row)
    assert watcher.judge(folded).step == record["verdict"]["step"] == 39


def test_argv_arrives_as_it_was_given(runs: Runs, tmp_path: Path) -> None:
    words = ["a b", "it's", '"quoted"', "$HOME", "; rm x", "{run}", "*", "", "new\nline", "-t", "--", "ümlaut;"]
    run = runs.start(*_job(tmp_path, "import json, sys\nprint(json.dumps(sys.argv[1:]))"), *words)
    runs.ended(run)
    assert json.loads(runs.log(run)) == words


def test_job_has_its_environment_and_a_wide_terminal(runs: Runs, tmp_path: Path) -> None:
    job = "import json, os, sys\nprint(json.dumps([dict(os.environ), list(os.get_terminal_size()), os.getcwd()]))"
    run = runs.start(*_job(tmp_path, job))
    runs.ended(run)
    variables, size, folder = json.loads(runs.log(run))
    assert size == [200, 50]
    assert folder == run["folder"]
    assert variables["OPSCTL_RUN_ID"] == run["run_id"]
    assert variables["OPSCTL_RUN_DIR"] == run["folder"]
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert {variables[f"PYTHON{name}"] for name in ("NOUSERSITE", "DONTWRITEBYTECODE", "UNBUFFERED")} == {"1"}
    assert "TMUX" not in variables


def test_logs_follow_ends_with_the_run(runs: Runs, tmp_path: Path) -> None:
    job = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('last')"
    run = runs.start(*_job(tmp_path, job))
    with subprocess.Popen([COMMAND, "train", "logs", "-f"], cwd=runs.project, stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"first\n"
        (runs.folder(run) / "go").touch()
        assert follower.stdout.read() == b"last\n"
        assert follower.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-n", "2"), "8\n9\n"),
        (("-n", "0"), ""),
        (("-n", "99"), "".join(f"{n}\n" for n in range(10))),
        (("--since-byte", "16"), "8\n9\n"),
        (("--since-byte", "999"), ""),
    ],
)
def test_logs_begin_where_asked(
    runs: Runs, opsctl: Callable[..., Any], options: tuple[str, ...], expected: str
) -> None:
    run = runs.start("sh", "-c", "for i in 0 1 2 3 4 5 6 7 8 9; do echo $i; done")
    runs.ended(run)
    assert opsctl("train", "logs", *options).ok().out == expected


def test_logs_into_a_reader_that_leaves(runs: Runs, tmp_path: Path) -> None:
    run = runs.start(*_job(tmp_path, "for n in range(200000): print(n)"))
    runs.ended(run)
    with subprocess.Popen(
        [COMMAND, "train", "logs"], cwd=runs.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as logs:
        assert logs.stdout is not None
        assert logs.stderr is not None
        assert logs.stdout.readline() == b"0\n"
        logs.stdout.close()
        assert logs.wait(60) == 141
        assert logs.stderr.read() == b""


def test_secrets_reach_the_job_and_nothing_else(runs: Runs, opsctl: Callable[..., Any], tmp_path: Path) -> None:
    secret = "s3cret-" + os.urandom(8).hex()
    job = (
        "import os, time\nprint(len(os.environ['TOKEN']), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)"
    )
    command = list(_job(tmp_path, job))
    settings = json.loads((runs.project / "opsctl.yaml").read_text())
    secrets = {"TOKEN": {"from_env": "MY_TOKEN"}}
    settings["jobs"] = {"keyed": {"command": command, "env": False, "code": False, "secrets": secrets}}
    (runs.project / "opsctl.yaml").write_text(json.dumps(settings))
    refused = opsctl("train", "start", "keyed")
    assert refused.code == 3
    assert "MY_TOKEN" in refused.err
    run = opsctl("train", "start", "keyed", "--json", MY_TOKEN=secret).ok().json()
    until(lambda: runs.log(run) == f"{len(secret)}\n".encode())
    holders = [
        process.name
        for process in Path("/proc").glob("[0-9]*")
        if secret.encode() in _read(process / "environ") + _read(process / "cmdline")
    ]
    assert [int(pid) for pid in holders] == [runs.job_pid(run)]
    (runs.folder(run) / "go").touch()
    runs.ended(run)
    files = [path for path in runs.home.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert not (runs.folder(run) / "secrets.fifo").exists()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or not ours
        return b""
