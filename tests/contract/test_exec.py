"""`exec` over every host and container: input and output of any size, statuses, signals, time limits."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from opsctl.ops.exec import CommandInput, run
from opsctl.ops.workspace import Workspace
from opsctl.records.call import Outcome
from tests.support.left import agents, sleeping, unique_nap
from tests.support.until import until

SIZE_BYTES = 50_000_000


class Output:
    """Both streams of a command, hashed, with their sizes and first bytes."""

    def __init__(self) -> None:
        self.sums = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
        self.sizes = {"stdout": 0, "stderr": 0}
        self.text = b""

    def __call__(self, stream: str, data: bytes) -> None:
        self.sums[stream].update(data)
        self.sizes[stream] += len(data)
        self.text += data if len(self.text) < 1000 else b""


def test_fifty_megabytes_pass_both_ways_at_once(workspace: Workspace, tmp_path: Path) -> None:
    block = os.urandom(1_000_000)
    (tmp_path / "big").write_bytes(block * (SIZE_BYTES // len(block)))
    output = Output()
    with (tmp_path / "big").open("rb") as file:
        outcome = run(workspace, ("cat",), on_output=output, inputs=CommandInput(file.fileno()))
    assert outcome == Outcome("exited", code=0)
    assert output.sizes == {"stdout": SIZE_BYTES, "stderr": 0}
    assert output.sums["stdout"].digest() == hashlib.sha256((tmp_path / "big").read_bytes()).digest()


def test_statuses_pass_unchanged(workspace: Workspace) -> None:
    statuses = (0, 1, 42, 124, 125, 127, 255)
    outcomes = [run(workspace, ("sh", "-c", f"exit {status}"), on_output=Output()) for status in statuses]
    assert outcomes == [Outcome("exited", code=status) for status in statuses]


def test_the_end_of_the_input_arrives(workspace: Workspace) -> None:
    output = Output()
    with Path(os.devnull).open("rb") as nothing:
        run(workspace, ("wc", "-c"), on_output=output, inputs=CommandInput(nothing.fileno()))
    assert output.text.strip() == b"0"


def test_a_command_that_does_not_read_its_input_ends_all_the_same(workspace: Workspace) -> None:
    with Path("/dev/zero").open("rb") as endless:
        outcome = run(workspace, ("sh", "-c", "exit 7"), on_output=Output(), inputs=CommandInput(endless.fileno()))
    assert outcome == Outcome("exited", code=7)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_past_waiting_input(workspace: Workspace, number: signal.Signals) -> None:
    """The input is never read, so that it stands in the way."""
    script = 'trap "exit 40" INT; trap "exit 41" TERM; echo ready; while :; do sleep 0.05; done'
    with Path("/dev/zero").open("rb") as endless:
        inputs = CommandInput(endless.fileno())
        outcome = run(
            workspace, ("sh", "-c", script), on_output=lambda *_: inputs.signal(number) and None, inputs=inputs
        )
    assert outcome == Outcome("exited", code=40 if number is signal.SIGINT else 41)


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(workspace: Workspace, home: str) -> None:
    nap = unique_nap()
    script = 'trap "" TERM; setsid sleep "$1" & sleep "$1" & echo ready; sleep "$1"'
    outcome = run(workspace, ("sh", "-c", script, "sh", nap), on_output=Output(), timeout_s=1.0)
    assert outcome == Outcome("timed_out")
    until(lambda: not sleeping(nap) and not agents(home))


def test_a_call_that_is_given_up_leaves_nothing(workspace: Workspace, home: str) -> None:
    nap = unique_nap()
    script = 'setsid sleep "$1" & echo begun; exec sleep "$1"'
    stream = workspace.client.stream("exec", {"argv": ["sh", "-c", script, "sh", nap]})
    assert next(stream)["record"] == b"begun\n"
    until(lambda: len(sleeping(nap)) == 2)
    stream.close()
    until(lambda: not sleeping(nap) and not agents(home))
