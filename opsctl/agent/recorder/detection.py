"""Feeds what the recorder sees to the detection folds and publishes findings and the verdict."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from opsctl.agent.baselines import figures_path
from opsctl.agent.home import RunPaths
from opsctl.agent.recorder.log import AppendFile
from opsctl.detect import lines, watcher
from opsctl.detect.figures import baseline
from opsctl.records.baseline import Baseline
from opsctl.records.call import to_json
from opsctl.records.events import End, Event, Line, Sample, Tick
from opsctl.records.run import RunSpec
from opsctl.records.verdict import FAILING, Finding, Verdict

JUDGE_PERIOD_S = 0.5
PUBLISH_PERIOD_S = 1.0  # for news of the step alone
OnChange = Callable[[Verdict, Verdict | None], None]


def context_of(spec: RunSpec, gpu_uuids: tuple[str, ...], good: Baseline) -> watcher.Context:
    """What is known about a job before it says anything itself; `good` are the figures of a good run of it.

    No pid: which processes are the job's is looked up, not guessed from numbers close to one.
    """
    return watcher.Context(
        compile_expected=spec.expect_compiled,
        warm_expected=spec.expect_warm,
        gpus=spec.gpus,
        gpu_uuids=gpu_uuids,
        baseline=good,
    )


def _write_quickly(path: Path, data: bytes) -> None:
    """Whole or not at all for readers, but not safe against a power cut: it is replaced all the time."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


class Detection:
    """One job's watch; a fault in a fold ends the watch, never the recording."""

    def __init__(self, paths: RunPaths, *, on_change: OnChange, complain: Callable[[str], None]) -> None:
        self._paths = paths
        self._on_change = on_change
        self._complain = complain
        self._findings = AppendFile(paths.findings)
        self._context = watcher.Context()
        self._state: watcher.State | None = None
        self._lines: dict[str, lines.LineState] = {}
        self._fault = ""
        self._is_dirty = False
        self._is_urgent = False
        self._judged = 0.0
        self._published = 0.0
        self.verdict = Verdict("starting")
        self._shown: Verdict | None = None
        self._is_saved = True

    @property
    def is_well(self) -> bool:
        """Whether the newest verdict asks nobody to come."""
        return self.verdict.verdict not in FAILING

    def begin(self, context: watcher.Context, now: float, *, log_offset: int) -> None:
        """Watch a new attempt, which knows nothing of the one before."""
        self._context = context
        self._state = watcher.start(context, now)
        self._lines = {"log": lines.LineState(offset=log_offset)}
        self._fault = ""
        self._is_dirty = True

    def data(self, source: str, data: bytes, start: int, now: float) -> None:
        """Output or metrics, as they lie in their file at `start`."""
        state = self._lines.get(source, lines.LineState(offset=start))
        if state.offset + len(state.pending) != start:  # some bytes in between were lost
            state = lines.LineState(offset=start)
        try:
            self._lines[source], rows = lines.split(state, data, now)
        except Exception as error:  # noqa: BLE001 - as in `event`
            self._break(error)
            return
        for row in rows:
            self.event(row if source == "log" else row._replace(source=source))

    def kernel_row(self, text: str, now: float, *, is_own: bool | None) -> None:
        """One row of the kernel's log, and whether the process that it names is the job's; None = unknown."""
        self.event(Line(now, text, source="kernel", is_own=is_own))

    def sample(self, sample: Sample) -> None:
        """GPUs and processes at one moment."""
        self.event(sample)

    def tick(self, now: float) -> float | None:
        """Time passed; returns in how many seconds silence alone will mean something, None where that is not known."""
        self.event(Tick(now))
        return watcher.turns_in_s(self._state) if self._state is not None and not self._fault else None

    def end(self, end: End) -> None:
        """The job ended; what stands in a row not ended counts too."""
        for source in list(self._lines):
            self._lines[source], rows = lines.flush(self._lines[source], end.time)
            for row in rows:
                self.event(row._replace(source=source))
        self.event(end)

    def event(self, event: Event) -> None:
        """Fold one event in."""
        if self._state is None or self._fault:
            return
        try:
            self._state, findings = watcher.observe(self._state, event)
        except Exception as error:  # noqa: BLE001 - a bug in a rule must not cost the run its log and exit record
            self._break(error)
            return
        self._is_dirty = True
        self._is_urgent = self._is_urgent or bool(findings) or isinstance(event, End)
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        """Publish a finding, whoever made it."""
        self._findings.append(json.dumps(to_json(finding), separators=(",", ":")).encode() + b"\n")

    def _break(self, error: Exception) -> None:
        self._complain("detection stopped:\n" + "".join(traceback.format_exception(error)))
        self._fault = f"opsctl's own detection failed: {type(error).__name__}: {error}"
        self._is_dirty = True

    def publish(self, now: float, *, at_once: bool = False) -> None:
        """Judge anew and write verdict.json where it changed; after a finding or the end without delay."""
        if not self._is_dirty or self._state is None:
            return
        if not at_once and not self._is_urgent and now - self._judged < JUDGE_PERIOD_S:
            return
        self._judged, self._is_urgent = now, False
        self.verdict = self._judge(now)
        is_news = self._shown is None or _headline(self.verdict) != _headline(self._shown)
        if not is_news and not at_once and now - self._published < PUBLISH_PERIOD_S:
            return
        self._is_dirty = False
        if self.verdict != self._shown:
            self.show(self.verdict, now)

    def _judge(self, now: float) -> Verdict:
        if not self._fault and self._state is not None:
            try:
                verdict = watcher.judge(self._state)
            except Exception as error:  # noqa: BLE001 - as in `event`
                self._break(error)
            else:
                same = self._shown is not None and _headline(verdict) == _headline(self._shown)
                return replace(verdict, since=self._shown.since) if same and self._shown else verdict
        return Verdict("unknown", "cause_unknown", since=now, evidence=(self._fault,))

    def show(self, verdict: Verdict, now: float) -> None:
        """Make `verdict` the run's verdict."""
        before, self._shown = self._shown, verdict
        self.verdict = verdict
        self._published = now
        self._save()
        if before is None or _headline(before) != _headline(verdict):
            self._on_change(verdict, before)

    def _save(self) -> None:
        try:
            _write_quickly(self._paths.verdict, json.dumps(to_json(self._shown)).encode() + b"\n")
            self._is_saved = True
        except OSError:  # disk full: `retry` comes back to it
            self._is_saved = False

    def keep_figures(self) -> None:
        """Write this run's own figures down, from which a baseline can be made."""
        if self._state is not None and not self._fault:
            with contextlib.suppress(OSError):  # disk full: the next figures may have better luck
                figures = to_json(baseline(self._state))
                _write_quickly(figures_path(self._paths), json.dumps(figures).encode() + b"\n")

    def retry(self) -> None:
        """Try again to write what waits for space."""
        self._findings.retry()
        if not self._is_saved:
            self._save()

    def close(self) -> None:
        """Bring everything to the disk."""
        self.keep_figures()
        self._findings.close()


def _headline(verdict: Verdict) -> tuple[str, str]:
    return verdict.verdict, verdict.cause
