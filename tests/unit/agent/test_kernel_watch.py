"""Whose the kernel rows are that a watch hands over: looked up among the run's processes, not guessed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from opsctl.agent.recorder import kernel
from opsctl.agent.recorder.kernel import HandedRow, handed_path
from opsctl.agent.recorder.kernel_watch import KernelWatch
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.members import Members

HANDED = {
    HandedRow("of the job", pid=771): True,
    HandedRow("of a process that no sample has seen", pid=999_999_999): None,
    HandedRow("of a process that is not the run's", pid=1): False,
    HandedRow("of another container", is_own=False): False,
    HandedRow("of nobody"): None,
}


def test_a_handed_row_says_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "KERNEL_LOG", str(tmp_path / "none"))
    loop, told, members = Loop(pytest.fail), dict[str, bool | None](), Members("run-of-this-test")
    members.sample(os.getpid())

    def on_row(text: str, is_own: bool | None) -> None:
        told[text] = is_own
        if len(told) == len(HANDED):
            loop.stop()

    watch = KernelWatch(loop, tmp_path, members, on_row)
    assert not watch.reads
    watch.job_pid = 771
    handed_path(tmp_path).write_text("".join(json.dumps(asdict(row)) + "\n" for row in HANDED))
    loop.run()
    assert told == {row.text: is_own for row, is_own in HANDED.items()}
