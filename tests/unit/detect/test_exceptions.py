"""Tracebacks put together again: ranks, chains, threads, boxes, loggers, cut tails."""

from __future__ import annotations

from opsctl.detect.exceptions import Exceptions, Trace
from opsctl.detect.rows import rows
from opsctl.records.events import Line


def traces(text: str) -> list[Trace]:
    fold, found, before = Exceptions(), [], ""
    for number, row_text in enumerate(text.splitlines()):
        for row in rows(Line(float(number), row_text, number, number + 1)):
            trace = fold.observe(row, before)
            found += [trace] if trace else []
        before = row_text if row_text.strip() else before
    return found


PLAIN = """Traceback (most recent call last):
  File "/srv/j/train.py", line 88, in <module>
    main()
  File "/srv/env/lib/python3.11/site-packages/torch/_tensor.py", line 648, in backward
    torch.autograd.backward(
ValueError: bad batch
"""


def test_a_traceback_names_its_exception_and_the_users_own_innermost_frame() -> None:
    (trace,) = traces("step 1\n" + PLAIN)
    assert (trace.kind, trace.message, trace.where) == ("ValueError", "bad batch", "/srv/j/train.py:88")
    assert (trace.start, trace.end) == (1, 7)
    assert not any((trace.is_logged, trace.is_ignored, trace.is_chained))


def test_interleaved_ranks_are_told_apart() -> None:
    one = [f"[rank0]: {row}" for row in PLAIN.splitlines()]
    two = [f"[rank5]: {row}" for row in PLAIN.replace("ValueError: bad batch", "KeyError: 'x'").splitlines()]
    mixed = "\n".join(row for pair in zip(one, two, strict=True) for row in pair)
    assert [(trace.rank, trace.kind) for trace in traces(mixed)] == [(0, "ValueError"), (5, "KeyError")]


def test_a_chain_gives_both_exceptions() -> None:
    chain = PLAIN + "\nThe above exception was the direct cause of the following exception:\n\n"
    found = traces(chain + PLAIN.replace("ValueError", "RuntimeError"))
    assert [(trace.kind, trace.is_chained) for trace in found] == [("ValueError", False), ("RuntimeError", True)]


def test_what_stands_before_a_traceback_says_what_it_is() -> None:
    assert traces("Exception in thread replica-2:\n" + PLAIN)[0].thread == "replica-2:"
    assert traces("Exception ignored in: <function f>\n" + PLAIN)[0].is_ignored
    assert traces("2026-04-12 08:11:02,110 ERROR trainer could not upload\n" + PLAIN)[0].is_logged
    assert traces("ERROR: Unexpected bus error encountered in worker.\n" + PLAIN)[0].is_logged is False


def test_a_warning_of_torch_is_logged() -> None:
    head = "W0311 15:26:41.298000 24847 torch/_dynamo/convert_frame.py:2415] "
    found = traces("".join(f"{head}{row}\n" for row in PLAIN.splitlines()))
    assert [(trace.kind, trace.is_logged) for trace in found] == [("ValueError", True)]


def test_an_exception_whose_traceback_scrolled_away() -> None:
    (trace,) = traces("torch._inductor.exc.InductorError: OSError: [Errno 116] Stale file handle")
    assert (trace.kind, trace.where) == ("torch._inductor.exc.InductorError", "")


def test_a_rich_box() -> None:
    box = """╭──── Traceback (most recent call last) ────╮
│ /srv/j/train.py:14 in <module>             │
│ ❱ 14 │   raise ValueError("no")            │
╰────────────────────────────────────────────╯
ValueError: no"""
    (trace,) = traces(box)
    assert (trace.kind, trace.where) == ("ValueError", "/srv/j/train.py:14")


def test_rows_in_between_do_not_end_a_traceback() -> None:
    rows_in_between = PLAIN.replace("    main()\n", "    main()\nstep 000012 | loss 2.0\n")
    assert [trace.kind for trace in traces(rows_in_between)] == ["ValueError"]


def test_prose_raises_nothing() -> None:
    assert traces("Errors: 0\nNo Exception: all fine\nstep 1 | Error rate 0.1\nDone: 3\n") == []


def test_the_inner_exception_of_a_worker_is_marked() -> None:
    passed_on = "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal " + PLAIN
    assert [trace.is_inner for trace in traces(passed_on)] == [False, True]
