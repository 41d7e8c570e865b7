"""Verdicts on files that anyone may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError, UsageError
from opsctl.ops.diagnose import diagnose, diagnose_case, diagnose_files
from opsctl.ops.material import Material, guess_columns
from opsctl.ops.material_events import stream
from opsctl.records.events import End, Line, Sample, Tick

DATA = Path(__file__).parents[2] / "data" / "watch"
LOG = "step 000010 | loss 2.4 | 0.5 s/step\nstep 000020 | loss 2.3 | 0.5 s/step\n"
OOM = (
    LOG
    + """Traceback (most recent call last):
  File "train.py", line 8, in <module>
torch.OutOfMemoryError: CUDA out of memory.
"""
)
CSV = "index, utilization.gpu [%], memory.used [MiB]\n0, 98 %, 40000 MiB\n0, 97 %, 40000 MiB\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_case_folder() -> None:
    verdict = diagnose_case(DATA / "001-oom-new-wording-wrapped").verdict
    assert (verdict.verdict, verdict.cause) == ("crashed", "cuda_oom")
    assert verdict.step == 1870


def test_a_log_alone_with_its_context(tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", OOM)
    context = write(tmp_path, "context.yaml", "proc: gone\nexit_code: 1\n")
    verdict = diagnose_files(log, context=context).verdict
    assert (verdict.verdict, verdict.cause) == ("crashed", "cuda_oom")
    assert any("train.py:8" in row for row in verdict.evidence)


@pytest.mark.parametrize(
    ("answer", "num_gpus"),
    [(CSV, 1), ("Failed to initialize NVML: Unknown Error\n", 0), ("", 0), ("GPU 0: x (UUID: GPU-1)\n", 1)],
)
def test_any_answer_of_nvidia_smi(tmp_path: Path, answer: str, num_gpus: int) -> None:
    smi = write(tmp_path, "smi.txt", answer)
    log = write(tmp_path, "train.log", LOG)
    context = write(tmp_path, "context.yaml", "proc: alive\nsince_last_line_s: 1\ntypical_step_s: 0.5\n")
    assert diagnose_files(log, smi=smi, context=context).verdict.verdict == "healthy"
    samples = [event for event in stream(Material(smi_text=answer)).events if isinstance(event, Sample)]
    assert len(samples) == 1
    assert len(samples[0].gpus) == num_gpus


def test_kernel_rows(tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", LOG)
    dmesg = write(tmp_path, "dmesg.txt", "[1.0] Out of memory: Killed process 771 (python) total-vm:1kB\n")
    context = write(tmp_path, "context.yaml", "proc: gone\npid: 771\n")
    assert diagnose_files(log, dmesg=dmesg, context=context).verdict.cause == "host_oom_killed"


def test_kernel_rows_that_say_nothing_are_told(tmp_path: Path) -> None:
    log, dmesg = write(tmp_path, "train.log", LOG), write(tmp_path, "dmesg.txt", "[1.0] usb 1-1: new device\nhello\n")
    assert "none of the 2 kernel rows tells of a fault" in diagnose_files(log, dmesg=dmesg).verdict.evidence


def test_a_context_that_is_no_mapping_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"context\.yaml"):
        diagnose_files(context=write(tmp_path, "context.yaml", "- 1\n"))


def test_events_are_in_order_and_end_now() -> None:
    known = {"proc": "gone", "exit_code": 1, "since_last_line_s": 7}
    found = list(stream(Material(OOM.encode(), smi_csv=CSV, context=known)).events)
    assert [event.time for event in found] == sorted(event.time for event in found)
    end = found[-1]
    assert isinstance(end, End)
    newest = max(event.time for event in found if isinstance(event, Line))
    assert end.time - newest == pytest.approx(7)


def test_rows_get_times_from_what_they_say_about_steps() -> None:
    events = stream(Material(LOG.encode(), context={"proc": "alive"})).events
    found = [event for event in events if isinstance(event, Line)]
    assert found[1].time - found[0].time == pytest.approx(5.0)


def test_a_live_job_ends_in_a_tick() -> None:
    assert isinstance(list(stream(Material(LOG.encode(), context={"proc": "alive"})).events)[-1], Tick)


def test_nothing_at_all_is_unknown() -> None:
    assert diagnose(Material(context={"proc": "gone"})).verdict.verdict == "unknown"
    assert diagnose(Material(context={"proc": "alive"})).verdict.verdict == "unknown"


def test_the_width_of_a_pane_is_found_out() -> None:
    pane = (DATA / "001-oom-new-wording-wrapped" / "log.txt").read_bytes()
    assert guess_columns(pane) == 80
    assert guess_columns(LOG.encode()) == 0
    assert guess_columns(b"") == 0


@pytest.mark.parametrize("data", [bytes(range(256)) * 80, b"a" * 300_000, b"total 4\n-rw-r--r-- 1 root root 7 notes\n"])
def test_what_tells_of_no_run_is_unknown(tmp_path: Path, data: bytes) -> None:
    log = tmp_path / "file"
    log.write_bytes(data)
    found = diagnose_files(log).verdict
    assert found.verdict == "unknown"
    assert "no rows of a training run" in found.evidence[0]


def test_a_run_that_has_only_begun_is_starting(tmp_path: Path) -> None:
    log = write(tmp_path, "train.log", "Loading checkpoint shards:   0%|          | 0/4 [00:00<?, ?it/s]\n")
    assert diagnose_files(log).verdict.verdict == "starting"
    some = write(tmp_path, "some.log", "hello\n")
    assert diagnose_files(some, context=write(tmp_path, "c.yaml", "proc: alive\n")).verdict.verdict == "starting"


@pytest.mark.parametrize("data", [bytes(range(64)), bytes(range(128, 256))], ids=["NUL", "no UTF-8"])
@pytest.mark.parametrize("kind", ["smi", "dmesg"])
def test_evidence_that_is_no_text_is_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / "bin"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="no text"):
        diagnose_files(write(tmp_path, "train.log", LOG), **{kind: path})


@pytest.mark.parametrize("name", ["smi.csv", "smi.txt", "dmesg.txt"])
def test_a_case_whose_evidence_is_no_text_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "case.yaml", "log_form: joined\n")
    (tmp_path / name).write_bytes(bytes(range(64)))
    with pytest.raises(ConfigError, match=f"{name} is no text"):
        diagnose_case(tmp_path)
