"""What an end amounts to: status, signal, words before it, the kernel, and who asked."""

from __future__ import annotations

import pytest

from tests.unit.detect.watching import Watching, gpu

OOM = "[ 99.1] Out of memory: Killed process 771 (python) total-vm:1kB, anon-rss:1kB"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/j/train.py", line 88, in <module>
    main()
{}
"""


@pytest.mark.parametrize(
    ("end", "pair"),
    [
        ({"exit_code": 0}, ("finished", "ok")),
        ({"exit_code": 75}, ("stopped", "ok")),
        ({"exit_code": 1}, ("crashed", "cause_unknown")),
        ({"signal": 9}, ("crashed", "sigkill_unknown")),
        ({"exit_code": 137}, ("crashed", "sigkill_unknown")),
        ({"signal": 11}, ("crashed", "segfault")),
        ({"signal": 15}, ("stopped", "sigterm")),
        ({"exit_code": 143}, ("stopped", "sigterm")),
        ({"exit_code": 130}, ("stopped", "keyboard_interrupt")),
        ({"signal": 1}, ("crashed", "sighup")),
        ({"signal": 9, "oom_killed": True}, ("crashed", "host_oom_killed")),
        ({"signal": 9, "stop_requested": True}, ("stopped", "ok")),
        ({"signal": 15, "stop_requested": True}, ("stopped", "ok")),
        ({"exit_code": 0, "stop_requested": True}, ("stopped", "ok")),
    ],
)
def test_the_status_alone(end: dict[str, object], pair: tuple[str, str]) -> None:
    watch = Watching()
    watch.steps(20)
    watch.end(**end)
    assert watch.pair == pair


@pytest.mark.parametrize(
    ("rows", "metrics", "end", "is_saved"),
    [
        ((), (), {}, False),
        (("saved checkpoint out/step-20 in 3.2 s",), (), {}, True),
        (("checkpoint out/step-20 was written",), (), {}, True),
        (("Saving model checkpoint to out/checkpoint-20",), (), {}, True),
        (("no checkpoint was saved", "could not be saved: checkpoint"), (), {}, False),
        (("saved 20 sample images",), (), {}, False),
        ((), ({"step": 21, "phase": "checkpoint"}, {"step": 22, "phase": "train"}), {}, True),
        ((), (), {"checkpoint": "out/step-20"}, True),
    ],
)
def test_a_good_checkpoint_is_told_only_where_one_was_seen(
    rows: tuple[str, ...], metrics: tuple[dict[str, object], ...], end: dict[str, object], is_saved: bool
) -> None:
    watch = Watching()
    watch.steps(20)
    for row in rows:
        watch.line(row)
    for values in metrics:
        watch.metrics(**values)
    watch.end(exit_code=75, **end)
    assert watch.pair == ("stopped", "ok")
    assert ("with a good checkpoint" in watch.verdict.evidence[0]) is is_saved


def test_an_uncaught_exception_is_the_cause_with_its_place_and_bytes() -> None:
    watch = Watching()
    watch.steps(20)
    start = watch.at
    watch.text("".join(f"[rank3]: {row}\n" for row in TRACEBACK.format("ValueError: no labels").splitlines()))
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", "python_exception")
    finding = watch.findings[-1]
    assert (finding.rank, finding.where, finding.severity) == (3, "/srv/j/train.py:88", "fatal")
    assert (finding.start, finding.end) == (start, watch.at)


def test_a_caught_traceback_long_before_the_end_is_not_its_cause() -> None:
    watch = Watching()
    watch.steps(20)
    watch.text(TRACEBACK.format("RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB."))
    watch.steps(40, first=21)
    assert watch.pair == ("healthy", "ok")
    watch.end(signal=9)
    assert watch.pair == ("crashed", "sigkill_unknown")


def test_the_kernel_names_the_out_of_memory_killer() -> None:
    watch = Watching(pid=771)
    watch.steps(20)
    watch.line(OOM, source="kernel")
    watch.end(signal=9)
    assert watch.pair == ("crashed", "host_oom_killed")


@pytest.mark.parametrize("counted", [None, True])
def test_the_out_of_memory_killer_of_another_process_is_not_ours(counted: bool | None) -> None:
    """Nor where both share a control group, which counted it."""
    watch = Watching(pid=5)
    watch.steps(20)
    watch.line(OOM.replace("771", "99771").replace("python", "mysqld"), source="kernel")
    watch.end(signal=9, oom_killed=counted)
    assert watch.pair == ("crashed", "sigkill_unknown")


@pytest.mark.parametrize(
    ("counted", "cause"), [(True, "host_oom_killed"), (None, "host_oom_killed"), (False, "sigkill_unknown")]
)
def test_a_kill_of_nobody_knows_whom_is_ours_unless_our_own_group_counted_none(
    counted: bool | None, cause: str
) -> None:
    """Inside a container the numbers in the host's rows are nobody's."""
    watch = Watching()
    watch.steps(20)
    watch.line(OOM, source="kernel")
    watch.end(signal=9, oom_killed=counted)
    assert watch.pair[1] == cause


@pytest.mark.parametrize(
    ("end", "words", "cause"),
    [
        ({"exit_code": 1}, "ValueError: no such column", "python_exception"),
        ({"exit_code": 1}, "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed.", "host_oom_killed"),
        ({"exit_code": 5}, "", "host_oom_killed"),
        ({"exit_code": 0}, "", "ok"),
    ],
)
def test_a_counted_kill_explains_what_nothing_else_does(end: dict[str, int], words: str, cause: str) -> None:
    watch = Watching()
    watch.steps(20)
    if words:
        watch.text(TRACEBACK.format(words))
    watch.end(**end, oom_killed=True)
    assert watch.pair[1] == cause


def test_a_counted_kill_of_which_the_kernel_named_another_explains_nothing() -> None:
    watch = Watching(pid=5)
    watch.steps(20)
    watch.line(OOM.replace("771", "99771").replace("python", "mysqld"), source="kernel")
    watch.end(exit_code=5, oom_killed=True)
    assert watch.pair == ("crashed", "cause_unknown")


@pytest.mark.parametrize(("every_s", "cause"), [(0.1, "gpu_lost"), (2.0, "cause_unknown")])
def test_the_kernels_last_words_count_though_quick_steps_followed(every_s: float, cause: str) -> None:
    """Its rows and the job's come by two ways: what is seconds old may be of the end, however many steps came since."""
    watch = Watching(pid=771)
    watch.steps(20)
    watch.line("[ 99.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=771, name=python, x", source="kernel")
    watch.steps(20, first=21, every_s=every_s)
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", cause)


@pytest.mark.parametrize(
    ("exit_code", "num_steps", "words", "cause"),
    [
        (2, 0, "usage: train.py [-h] --data DATA", "bad_arguments"),
        (2, 0, "\u2502 Usage: train [OPTIONS]", "bad_arguments"),
        (1, 0, "usage: train.py [-h] --data DATA", "cause_unknown"),
        (2, 0, "memory usage: 3 GiB", "cause_unknown"),
        (2, 20, "usage: train.py [-h] --data DATA", "cause_unknown"),
    ],
)
def test_a_refused_command_line_ends_with_two_and_shows_its_usage(
    exit_code: int, num_steps: int, words: str, cause: str
) -> None:
    watch = Watching()
    watch.steps(num_steps)
    watch.text(f"{words}\ntrain.py: no way")
    watch.end(exit_code=exit_code)
    assert watch.pair == ("crashed", cause)


def test_hardware_outranks_what_it_does_to_the_job() -> None:
    watch = Watching(pid=771)
    watch.steps(20)
    watch.text(TRACEBACK.format("RuntimeError: CUDA error: unspecified launch failure"))
    watch.line(
        "[ 99.1] NVRM: Xid (PCI:0000:1b:00): 79, pid=771, name=python, GPU has fallen off the bus.", source="kernel"
    )
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", "gpu_lost")
    assert "Reboot" in watch.verdict.advice


def test_the_root_failure_outranks_its_echoes() -> None:
    watch = Watching()
    watch.steps(20)
    watch.line("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 1 GiB")
    watch.line(
        "[rank0]:[E412 08:21:01.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: x"
    )
    watch.line("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", "cuda_oom")
    assert any("rank 3" in row for row in watch.verdict.evidence)


def test_memory_that_nobody_holds_any_more() -> None:
    watch = Watching()
    watch.steps(20)
    for _ in range(4):
        watch.sample(gpu(util=0, used=60000, power=70))
    watch.end(signal=9)
    assert watch.pair == ("crashed", "gpu_memory_not_released")


def test_a_status_zero_after_words_about_a_signal_is_a_stop() -> None:
    watch = Watching()
    watch.steps(20)
    watch.line("received SIGTERM, saving and leaving")
    watch.end(exit_code=0)
    assert watch.pair == ("stopped", "sigterm")


def test_words_in_passing_do_not_explain_a_signal() -> None:
    watch = Watching()
    watch.line("No module named 'apex', using the native layer norm")
    watch.end(signal=9)
    assert watch.pair == ("crashed", "sigkill_unknown")


def test_a_warning_that_names_something_grave_does_not_outrank_an_exception() -> None:
    watch = Watching()
    watch.steps(20)
    watch.line("2026-04-12 08:11:02,110 WARNING trainer CUDA out of memory was seen on another host")
    watch.line("going on")
    watch.text(TRACEBACK.format("KeyError: 'x'"))
    watch.end(exit_code=1)
    assert watch.pair == ("crashed", "python_exception")


def test_a_part_that_failed_while_the_job_lives() -> None:
    watch = Watching()
    watch.steps(20, every_s=0.5)
    watch.line("Exception in thread replica-2:")
    watch.text(
        TRACEBACK.format(
            "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function."
        )
    )
    watch.ticks(3)
    assert watch.pair == ("healthy", "ok")
    watch.ticks(5)
    assert watch.pair == ("crashed", "fx_trace_race")
    watch.steps(2, first=21)
    assert watch.pair == ("healthy", "ok")


def test_every_verdict_after_an_alarm_has_its_finding() -> None:
    watch = Watching()
    watch.steps(20)
    watch.text(TRACEBACK.format("KeyError: 'x'"))
    watch.end(exit_code=1)
    assert [(finding.cause, finding.severity) for finding in watch.findings] == [
        ("python_exception", "error"),
        ("python_exception", "fatal"),
    ]
    assert watch.findings[-1].summary.startswith("crashed")
    assert watch.verdict.since == watch.now


def test_a_caught_exception_is_said_to_have_ended_nothing() -> None:
    watch = Watching()
    watch.steps(20)
    watch.text(TRACEBACK.format("KeyError: 'x'"))
    watch.steps(9, first=21)
    watch.end(exit_code=0)
    assert watch.pair == ("finished", "ok")
    (finding,) = watch.findings
    assert (finding.severity, finding.summary) == ("error", "an exception was raised")


def test_long_evidence_is_cut_between_words() -> None:
    watch = Watching()
    watch.steps(2)
    watch.text(TRACEBACK.format("ValueError: " + "shape " * 100))
    watch.end(exit_code=1)
    told = watch.verdict.evidence[0]
    assert told.endswith(" shape ...")
    assert len(told) <= 400
