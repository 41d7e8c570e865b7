"""Log, exit record and telemetry on the disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from opsctl.agent.files import read_record
from opsctl.agent.recorder import exit_record
from opsctl.agent.recorder import log as log_module
from opsctl.agent.recorder.exit_record import RESERVED_BYTES, ExitFile
from opsctl.agent.recorder.kernel import HandedRow, HandedRows, OomCounter, handed_path
from opsctl.agent.recorder.log import BACKLOG_LIMIT_BYTES, AppendFile, Log
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.metrics import MetricsTail
from opsctl.agent.recorder.telemetry import KEEP_S, ROLL_PERIOD_S, Telemetry, aggregate, read_rows, row
from opsctl.records.events import GpuSample, ProcessSample, Sample
from opsctl.records.run import Attempt, ExitRecord
from opsctl.records.verdict import Verdict


class FullDisk:
    """Lets `room` bytes through to os.write, then fails as a full disk does."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, data: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(descriptor, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    found = FullDisk(10**9)

    class Os:
        def __getattr__(self, name: str) -> object:
            return found.write if name == "write" else getattr(os, name)

    monkeypatch.setattr(log_module, "os", Os())
    return found


def test_what_a_full_disk_refused_is_written_later(tmp_path: Path, disk: FullDisk) -> None:
    path = tmp_path / "log"
    file = AppendFile(path)
    disk.room = 3
    assert [file.append(data) for data in (b"abcd", b"ef", b"gh")] == [0, 4, 6]
    assert (path.read_bytes(), file.size, file.end, file.is_behind) == (b"abc", 3, 8, True)
    disk.room = 100
    file.retry()
    assert (path.read_bytes(), file.size, file.is_behind) == (b"abcdefgh", 8, False)


def test_what_no_memory_could_hold_is_told(tmp_path: Path, disk: FullDisk) -> None:
    path = tmp_path / "log"
    file = AppendFile(path)
    disk.room = 0
    assert file.append(b"x" * BACKLOG_LIMIT_BYTES) == 0
    assert file.append(b"lost") is None
    assert file.append(b"lost too") is None
    disk.room = 10**9
    assert file.append(b"after") is not None
    data = path.read_bytes()
    assert data.startswith(b"x" * BACKLOG_LIMIT_BYTES + b"\n[opsctl: 12 bytes of output are missing here")
    assert data.endswith(b"]\nafter")


def test_a_closed_log_knows_what_it_lacks(tmp_path: Path, disk: FullDisk) -> None:
    log = Log(tmp_path / "log", tmp_path / "log.idx")
    disk.room = 3
    log.append(b"abcd", 1.0)
    log.append(b"efgh", 2.0)
    log.close()
    assert (log.size, log.num_missing_bytes) == (3, 5)


def test_a_log_knows_what_it_lost_though_space_came_back(tmp_path: Path, disk: FullDisk) -> None:
    log = Log(tmp_path / "log", tmp_path / "log.idx")
    disk.room = 0
    log.append(b"x" * BACKLOG_LIMIT_BYTES, 1.0)
    log.append(b"lost", 2.0)
    disk.room = 10**9
    log.retry()
    log.close()
    assert log.num_missing_bytes == 4


def test_a_log_that_stands_is_added_to(tmp_path: Path) -> None:
    for text, moment in ((b"one\n", 1.0), (b"two\n", 2.5)):
        log = Log(tmp_path / "log", tmp_path / "log.idx")
        log.append(text, moment)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "log.idx").read_text() == "0 1.000\n4 2.500\n"


@pytest.mark.parametrize("num_attempts", [1, 2000], ids=["in its room", "beside it"])
def test_exit_record(tmp_path: Path, num_attempts: int) -> None:
    path = tmp_path / "run" / "exit.json"
    path.parent.mkdir()
    file = ExitFile(path)
    assert [one.stat().st_size for one in path.parent.iterdir()] == [RESERVED_BYTES]
    attempts = tuple(Attempt(number, 1.0, 2.0, 0, None) for number in range(num_attempts))
    record = ExitRecord("job-1", attempts, Verdict("finished"), 3)
    file.write(record)
    assert read_record(ExitRecord, path) == record
    assert [one.name for one in path.parent.iterdir()] == ["exit.json"]


def test_an_exit_record_waits_for_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_record, "AGAIN_S", 0.01)
    path, loop = tmp_path / "exit.json", Loop(pytest.fail)
    file, record = ExitFile(path), ExitRecord("job-1", (), Verdict("finished"), 3)
    path.mkdir()  # nothing can be put there
    loop.later(0.05, path.rmdir)
    file.insist(loop, record, loop.stop)
    loop.run()
    assert read_record(ExitRecord, path) == record


def test_an_exit_record_waits_for_no_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    said, ends = list[str](), list[str]()
    file = ExitFile(tmp_path / "run" / "exit.json")
    shutil.rmtree(tmp_path / "run")
    file.insist(Loop(said.append), ExitRecord("job-1", (), Verdict("finished"), 3), lambda: ends.append("over"))
    assert [text.partition(":")[0] for text in said] == ["the exit record cannot be written"]
    assert ends == ["over"]


def sample(moment: float, **gpu: float) -> Sample:
    return Sample(moment, (GpuSample(0, uuid="GPU-a", **gpu),), ProcessSample(1, "S", 1.0, 2.0))


def test_rows_leave_out_what_is_not_known_and_come_back(tmp_path: Path) -> None:
    one = Sample(1.0, (GpuSample(0, used_mib=0.0),), ProcessSample(2, "RS", 0.5, 3.25), disk_free_mib=9.0)
    (tmp_path / "rows").write_bytes(row(one) + b'{"time": 2.0, "gpu')
    assert b"null" not in row(one)
    assert list(read_rows(tmp_path / "rows")) == [one]


def test_aggregates_are_means_and_the_highest_memory() -> None:
    series = [
        sample(10.0, utilization_pct=100.0, used_mib=10.0, power_w=600.0),
        sample(15.0, utilization_pct=50.0, used_mib=90.0, power_w=200.0),
        sample(20.0, utilization_pct=0.0),
    ]
    first, second = aggregate(series, 10.0)
    gpu = first.gpus[0]
    assert (first.time, gpu.utilization_pct, gpu.used_mib, gpu.power_w) == (15.0, 75.0, 90.0, 400.0)
    assert (second.gpus[0].utilization_pct, second.gpus[0].used_mib) == (0.0, None)


def test_old_telemetry_becomes_aggregates_and_nothing_is_lost(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "new", tmp_path / "old")
    last = int(KEEP_S + ROLL_PERIOD_S) + 1
    for moment in range(last + 1):
        telemetry.append(sample(float(moment), used_mib=float(moment)))
    telemetry.append(sample(last + 1.0))
    telemetry.close()
    new, old = list(read_rows(tmp_path / "new")), list(read_rows(tmp_path / "old"))
    assert [one.time for one in new] == [float(moment) for moment in range(last - int(KEEP_S), last + 2)]
    assert [one.time for one in old][:3] == [9.0, 19.0, 29.0]
    assert old[-1].time == new[0].time - 1
    assert not list(tmp_path.glob("*.part"))


def test_metrics_are_followed_through_a_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == (0, b"")
    path.write_bytes(b"one\n")
    assert tail.read() == (0, b"one\n")
    with path.open("ab") as file:
        file.write(b"two\n")
    assert tail.read() == (4, b"two\n")
    assert tail.read() == (8, b"")
    path.write_bytes(json.dumps({"step": 1}).encode()[:5])
    assert tail.read() == (0, b'{"ste')


def test_handed_kernel_rows_come_once_and_a_broken_one_costs_no_other(tmp_path: Path) -> None:
    handed, xid = HandedRows(tmp_path), HandedRow("Xid 79", pid=7, is_own=None)
    assert handed.read() == []
    broken = ('{"text": "Xid 7', '{"words": "Xid 7"}', '"Xid 7"', '{"text": "Xid 31", "is_own": false}')
    handed_path(tmp_path).write_text(
        "\n".join((json.dumps(asdict(xid)), *broken, json.dumps(asdict(xid)), '{"text": "ha'))
    )
    assert handed.read() == [xid, HandedRow("Xid 31", is_own=False)]
    with handed_path(tmp_path).open("a") as file:
        file.write('lf a row"}\n' + json.dumps(asdict(xid)) + "\n")
    assert handed.read() == [HandedRow("half a row")]


def test_a_kill_for_memory_is_counted_and_forgotten(tmp_path: Path) -> None:
    """Runs may share a control group: what it counted long ago has nothing to do with an end now."""
    counter = OomCounter(())
    assert counter.rose_since(0.0) is None
    counter = OomCounter((tmp_path / "memory.events",))
    for kills, now in ((3, 10.0), (4, 20.0), (4, 60.0)):
        (tmp_path / "memory.events").write_text(f"oom 9\noom_kill {kills}\n")
        if now == 10.0:
            counter.begin()
        counter.look(now)
    assert counter.rose_since(30.0) is False
    assert counter.rose_since(15.0) is True
    counter.begin()
    assert counter.rose_since(15.0) is False
