"""A run's folder that is not whole is judged by what is there; one that says nonsense is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.errors import ConfigError
from opsctl.ops.diagnose import Diagnosis, diagnose_run
from opsctl.ops.recorded_run import events
from opsctl.records.call import to_json
from opsctl.records.events import Line
from opsctl.records.run import RunRecord, RunSpec

RUN = RunRecord("r-1", RunSpec(name="r", argv=("train",)), 1000.0, "socket", "session")
LOG = "step 000010 | loss 2.4\nstep 000020 | loss 2.3\n"


def folder_of(place: Path, **files: str) -> Path:
    """A run's folder with these files."""
    (place / "run.json").write_text(json.dumps(to_json(RUN)))
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return place


def diagnosed(folder: Path) -> Diagnosis:
    return diagnose_run(folder, on_read=lambda done, total: None)


def test_a_run_without_a_log_is_judged(tmp_path: Path) -> None:
    assert diagnosed(folder_of(tmp_path)).verdict.verdict == "starting"


@pytest.mark.parametrize("index", ["0 1001.500\n23 ", "0 1001.500\n23 10", "0 1001.500\n"])
def test_an_index_that_a_full_disk_cut_loses_its_last_row_alone(tmp_path: Path, index: str) -> None:
    folder = folder_of(tmp_path, train__log=LOG, train__log__idx=index)
    found = events(folder, RUN, on_read=lambda done, total: None)
    assert [(one.time, one.text) for one in found if isinstance(one, Line)] == [
        (1001.5, row) for row in LOG.splitlines()
    ]


def test_a_log_without_an_index_is_read_all_the_same(tmp_path: Path) -> None:
    assert diagnosed(folder_of(tmp_path, train__log=LOG)).num_rows == 2


@pytest.mark.parametrize(("name", "text"), [("exit__json", ""), ("telemetry__jsonl", '{"gpus": []}\n')])
def test_a_file_that_says_nonsense_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name.replace("__", r"\.")):
        diagnosed(folder_of(tmp_path, train__log=LOG, **{name: text}))
