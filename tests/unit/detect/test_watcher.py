"""The whole fold: any input is survived, equal input gives equal output, nothing grows with the log."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.detect import smi, smi_text, watcher
from opsctl.detect.lines import LineState, flush, split
from opsctl.records.call import to_json
from opsctl.records.events import End, Event, GpuSample, Line, ProcessSample, Sample, Tick
from opsctl.records.verdict import VERDICTS, Finding, Verdict
from tests.unit.detect.watching import Watching, gpu

NASTY = """step |loss |nan|inf|1e999|12/300|0.5 s/step|tok/s|41%|##| 3/9 [0:1<0:2, 1.5it/s]
Traceback (most recent call last)|  File "a.py", line 3|ValueError: x|CUDA out of memory|[rank3]: |\u0130|\u0663
\x1b[31m|reducing loss scale to 1.2.3|Gradient overflow. Skipping step|exitcode  : -9|Killed|^C|{'loss': |}|[|]
: |data |time |Xid (PCI:0000:1b:00): |pid=|rank99999999999: 
eval|saving checkpoint|WON'T CONVERT f|epoch |rss |iteration |oom skip
Graph break in user code at a.py:3|Root Cause|===="""
WORDS = st.sampled_from([word for row in NASTY.splitlines() for word in row.split("|")] + ["9" * 5000, " " * 3000, "|"])
TEXTS = st.lists(WORDS, max_size=12).map("".join)
NUMBERS = st.one_of(st.none(), st.floats(), st.integers(), st.text(max_size=5), st.booleans())
METRICS = st.dictionaries(
    st.sampled_from(
        ["step", "num_steps", "loss", "grad_norm", "tokens", "tokens_per_s", "phase", "recompiles", "graph_breaks"]
    ),
    NUMBERS,
).map(json.dumps)
SAMPLES = st.builds(
    GpuSample,
    st.integers(0, 3),
    utilization_pct=st.one_of(st.none(), st.floats(0, 100)),
    used_mib=st.one_of(st.none(), st.floats(0, 1e5)),
    power_w=st.one_of(st.none(), st.floats(0, 1e3)),
    throttle=st.one_of(st.none(), st.integers(0, 255)),
    problem=st.sampled_from(["", "GPU is lost"]),
)


PROCESSES = st.one_of(
    st.none(), st.builds(ProcessSample, st.just(2), st.sampled_from(["RS", "TT", "Z", ""]), st.floats(0, 1e6))
)
PROBLEMS = st.sampled_from(["", "nvidia-smi does not answer", "Unknown Error"])
EVENTS = st.one_of(
    st.builds(Line, st.just(0.0), TEXTS, source=st.sampled_from(["log", "log", "kernel"])),
    st.builds(Line, st.just(0.0), st.one_of(METRICS, TEXTS), source=st.just("metrics")),
    st.builds(Sample, st.just(0.0), st.lists(SAMPLES, max_size=3).map(tuple), PROCESSES, PROBLEMS),
    st.just(Tick(0.0)),
)
HISTORIES = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, 100.0]), EVENTS), max_size=25)
ENDS = st.builds(End, st.just(1e6), exit_code=st.one_of(st.none(), st.integers(-40, 300)))


def timed(history: list[tuple[float, Event]]) -> list[Event]:
    """The events with times, from the gaps before them."""
    times = itertools.accumulate(gap for gap, _ in history)
    return [_at(event, time) for time, (_, event) in zip(times, history, strict=True)]


def _at(event: Event, time: float) -> Event:
    return event._replace(time=time) if isinstance(event, Line) else replace(event, time=time)


def watched(events: list[Event]) -> tuple[list[Verdict], list[Finding]]:
    state, verdicts, findings = watcher.start(watcher.Context(), 0.0), [], []
    for event in events:
        state, found = watcher.observe(state, event)
        verdicts.append(watcher.judge(state))
        findings += found
    return verdicts, findings


SURVIVAL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SURVIVAL
@given(HISTORIES, ENDS)
def test_any_history_is_survived_and_judged_the_same_again(history: list[tuple[float, Event]], end: End) -> None:
    events = [*timed(history), end]
    verdicts, findings = watched(events)
    assert (verdicts, findings) == watched(events)
    assert {verdict.verdict for verdict in verdicts} <= set(VERDICTS)
    json.dumps(to_json([verdicts, findings]), allow_nan=False)


@SURVIVAL
@given(TEXTS)
def test_any_answer_of_nvidia_smi_is_survived(text: str) -> None:
    smi.parse_csv(text, smi.COLUMNS)
    smi.parse_csv(text)
    smi_text.parse(text)


def test_an_endless_row_does_not_cost_endless_time() -> None:
    watch = Watching()
    before = time.process_time()
    for text in ("9" * 30000, "a" * 30000, " " * 30000, "step " * 6000, "loss 1.5/" * 3000, "out of memory " * 2000):
        watch.line(text)
        watch.line(text, source="kernel")
        watch.line(text, source="metrics")
    assert time.process_time() - before < 5.0


def test_a_log_on_disk_gives_the_live_runs_findings_however_it_is_cut() -> None:
    data = b"step 1/9 loss 2\nTraceback (most recent call last):\n  File \"a.py\", line 3, in f\nKeyError: 'x'\n" * 3

    def findings(size: int) -> list[Finding]:
        state, lines, found = watcher.start(watcher.Context(), 0.0), LineState(), []
        for at in range(0, len(data), size):
            lines, rows = split(lines, data[at : at + size], 1.0)
            for row in rows:
                state, more = watcher.observe(state, row)
                found += more
        assert flush(lines, 1.0)[1] == ()
        return found

    assert findings(1) == findings(7) == findings(len(data))
    assert findings(1)[0].where == "a.py:3"


def test_a_flood_of_one_wording_is_a_few_findings_and_bounded_memory() -> None:
    watch = Watching()
    for number in range(4000):
        watch.line(f"/src/Loss.cu:103: block: [3,0,0], thread: [{number},0,0] Assertion `t < n` failed.")
        watch.line(f"row {number} of {'x' * (number % 700)}")
    assert len(watch.findings) <= 6
    assert len(watch.state.words.hits) <= 160
    assert len(watch.state.shapes) <= watcher.MAX_SHAPES
    assert len(watch.state.last_rows) <= 2 * watcher.LAST_ROWS


def test_the_verdict_carries_what_is_known_of_the_run() -> None:
    watch = Watching()
    for step in range(10, 200, 10):
        watch.line(f"step {step}/500 | loss 2.25 | 0.5 s/step | 8k tok/s", after_s=5.0)
    verdict = watch.verdict
    assert (verdict.step, verdict.num_steps, verdict.loss) == (190, 500, 2.25)
    assert (verdict.step_s, verdict.tokens_per_s, verdict.phase) == (0.5, 8000.0, "train")


def test_the_verdict_says_since_when() -> None:
    watch = Watching()
    watch.steps(40)
    watch.ticks(61)
    since = watch.now
    watch.ticks(30)
    assert watch.verdict.verdict == "hung"
    assert watch.verdict.since == since


def test_an_evaluation_that_raises_memory_and_a_checkpoint_are_no_alarm_in_a_long_run() -> None:
    """Half an hour of a healthy compiled run with everything that looks odd now and then."""
    watch = Watching(compile_expected=True)
    step = 0
    for minute in range(30):
        for _ in range(60):
            step += 1
            watch.line(f"step {step} loss {2.5 - step / 4000 + (step % 5) / 50:.4f} | 1.0 s/step", after_s=1.0)
            watch.sample(gpu(used=31020.0), after_s=0.0, cpu_s=step * 1.0)
        if minute % 5 == 4:
            watch.line("eval: 200 batches ...", after_s=0.5)
            for tick in range(40):
                watch.sample(
                    gpu(used=44800.0 if tick < 30 else 36020.0, util=60, power=210), after_s=0.5, cpu_s=step * 1.0
                )
            watch.line("eval: loss 2.21", after_s=0.5)
        if minute % 7 == 6:
            watch.line(f"saving checkpoint step-{step}", after_s=0.5)
            for _ in range(30):
                watch.sample(gpu(used=31020.0, util=0, power=120), after_s=0.5, cpu_s=step * 1.0)
        assert watch.pair == ("healthy", "ok")
    assert [finding.cause for finding in watch.findings] == []
