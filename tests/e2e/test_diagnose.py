"""`opsctl diagnose` on files that anyone may have, without any configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import app
from tests.conftest import COMMAND, Ended
from tests.support.cases import ALARMS, check, expected_of, folders
from tests.support.terminal import Terminal

Opsctl = Callable[..., Ended]
CASES = folders("watch")
CODES = {"healthy": 0, "starting": 0, "finished": 0, "unknown": 4, "stopped": 75}
STEPS = "step 1/10 loss 2.1 0.5 s/step\nstep 2/10 loss 2.0 0.5 s/step\n"
CHAIN = """\
[rank3]: Traceback (most recent call last):
[rank0]: step 3/10 loss 2.0
[rank3]:   File "/srv/train.py", line 8, in load
[rank3]:     return table[name]
[rank3]: KeyError: 'a'
[rank3]:
[rank3]: During handling of the above exception, another exception occurred:
[rank3]:
[rank3]: Traceback (most recent call last):
[rank3]:   File "/srv/train.py", line 10, in <module>
[rank3]:     main()
[rank3]: ValueError: no table
"""


def test_a_log_alone_is_enough(opsctl: Opsctl, project: Path) -> None:
    (project / "train.log").write_text(STEPS + CHAIN)
    ended = opsctl("diagnose", "train.log", "--json")
    assert ended.code == 1
    found = ended.json()
    assert (found["verdict"], found["cause"], found["step"]) == ("crashed", "python_exception", 3)
    assert {"confidence", "evidence", "advice"} <= found.keys()
    assert found["source"]["where"] == "/srv/train.py:8"
    assert found["source"]["rank"] == 3
    data = (project / "train.log").read_bytes()[found["source"]["start"] : found["source"]["end"]]
    assert data.startswith(b"[rank3]: Traceback")
    assert data.endswith(b"KeyError: 'a'\n")


def test_the_whole_traceback_of_one_rank_on_request(opsctl: Opsctl, project: Path) -> None:
    (project / "train.log").write_text(STEPS + CHAIN)
    rows = opsctl("diagnose", "train.log", "--json", "--traceback").json()["traceback"]
    own = [row.removeprefix("[rank3]:").removeprefix(" ") for row in CHAIN.splitlines() if row.startswith("[rank3]")]
    assert rows == own
    assert "| ValueError: no table" in opsctl("diagnose", "train.log", "--traceback").out


def test_a_log_that_just_stops_is_judged_as_of_its_last_row(opsctl: Opsctl, project: Path) -> None:
    (project / "train.log").write_text(STEPS)
    ended = opsctl("diagnose", "train.log")
    assert ended.code == 0
    assert ended.out.startswith("HEALTHY")
    assert "not said" in ended.out


def test_a_log_on_stdin(project: Path, tmp_path: Path) -> None:
    (project / "train.log").write_text(STEPS + CHAIN)
    argv = ("sh", "-c", f"{COMMAND} diagnose - < train.log; exec sleep 60")
    terminal = Terminal(argv, folder=project, socket=tmp_path / "t", width=160, height=20)
    try:
        terminal.wait_for("CRASHED python_exception")
    finally:
        terminal.close()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ((), 2, "nothing to diagnose"),
        (("none.log",), 2, "none.log"),
        (("empty",), 2, "case.yaml"),
        (("train.log", "--smi", "empty"), 2, "is a folder"),
        (("train.log", "--context", "list.yaml"), 3, "list.yaml"),
        (("train.log", "--context", "typo.yaml"), 3, "did you mean 'typical_step_s'?"),
        (("train.log", "--context", "word.yaml"), 3, "since_last_line_s is 'long', which is not a number"),
        (("train.log", "--context", "life.yaml"), 3, "alive or gone"),
        (("broken",), 3, "case.yaml"),
    ],
)
def test_what_cannot_be_read_is_named(
    opsctl: Opsctl, project: Path, words: tuple[str, ...], code: int, part: str
) -> None:
    (project / "empty").mkdir()
    (project / "broken").mkdir()
    (project / "broken" / "case.yaml").write_bytes(b"a: \xff\xfe")
    (project / "train.log").write_text(STEPS)
    files = {"list": "- 1", "typo": "typical_steps: 1", "word": "since_last_line_s: long", "life": "proc: dead"}
    for name, text in files.items():
        (project / f"{name}.yaml").write_text(text)
    ended = opsctl("diagnose", *words)
    assert ended.code == code, ended
    assert part in ended.err


def test_a_case_through_the_installed_command(opsctl: Opsctl) -> None:
    ended = opsctl("diagnose", str(CASES[0]), "--json")
    assert ended.code == 1
    assert ended.json()["cause"] == "cuda_oom"


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_every_case_through_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = app.run(["diagnose", str(folder), "--json"])
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    check(found["verdict"], found["cause"], expected_of(folder))
    assert code == CODES.get(found["verdict"], 1)
    if found["verdict"] in ALARMS:
        assert found["evidence"]
        assert found["advice"]
