"""Verb pane-watch: a tmux pane that opsctl did not start, watched by the same folds, told as a run is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from opsctl.agent.baselines import load
from opsctl.agent.pane.job import PaneJob
from opsctl.agent.pane.scrollback import Scrollback
from opsctl.agent.pane.tmux_pane import PaneGone, PaneInfo, TmuxPane, open_pane
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.sampler import Sampler
from opsctl.agent.session import Call
from opsctl.detect import watcher
from opsctl.records.baseline import Baseline
from opsctl.records.events import End, Event, Line, Sample, Tick
from opsctl.records.run import RunRecord, RunSpec, RunStatus
from opsctl.records.verdict import Finding, Verdict

POLL_S = 0.25
PUBLISH_S = 1.0  # between verdicts that differ in their numbers alone
SHELL_S = 2.0  # how long a shell may take to say how its child ended, and to prompt
OPEN_ROW_S = 1.0  # between looks at a row that is still being written, as a progress bar is
NEWEST_ROWS = 300
LOG_ROWS = 100  # of the backlog; the folds see all of it


class PaneWatch:
    """One watch of one pane, from what it shows already to the end of its job."""

    def __init__(self, call: Call, pane: TmuxPane, info: PaneInfo) -> None:
        self._session = call.session
        self._is_once = bool(call.request.get("once"))
        self._told_rows: list[str] = call.request.get("told") or []
        self._pane, self._info = pane, info
        self._job = PaneJob()
        self._is_live = self._job.look(info.pid)
        self._scrollback = Scrollback(height=info.height)
        self._state = watcher.start(_context(call, self._job.pid), time.time())
        self._next_byte = int(call.request.get("start") or 0)
        self._open_row, self._open_seen = "", 0.0
        self._cursor_row = self._job_row = ""  # the row being written now, and by the job while it lived
        self._died: float | None = None
        self._shown: Verdict | None = None
        self._published = 0.0
        self._end: End | None = None
        self._loop = Loop(_complain)
        self._sampler: Sampler | None = None

    def run(self) -> RunStatus:
        """Tell what stands, then what comes until the job ends; returns the last status."""
        self._session.record("status", self._status())
        self._backlog()
        if not self._is_live:
            self._finish(End(time.time()))
        self._publish()
        self._session.record("caught_up", {})
        if self._end is None and not self._is_once:
            self._follow()
        return self._status()

    def _status(self) -> RunStatus:
        info, job = self._info, self._job
        words = job.words() or (info.command,)
        spec = RunSpec(name=info.session, argv=words, kind="pane")
        record = RunRecord(info.session, spec, info.created, self._pane.socket, info.session, None, job.process)
        state = "running" if self._end is None else "over"
        return RunStatus(record, state, watcher.judge(self._state), log_bytes=self._next_byte, last_output=None)

    # -- text ----------------------------------------------------------------------------------------

    def _backlog(self) -> None:
        """Fold in all rows of the job that the pane still holds; tell the newest, or those that a client lacks."""
        capture = self._pane.capture(self._info)
        rows = list(capture.rows)
        self._scrollback.new_rows(rows, is_whole=True)
        untold = self._untold(rows)
        told_bytes = _size(rows[: len(rows) - len(untold)])
        first_byte = self._next_byte - told_bytes if self._told_rows else 0
        begin = begin_of_job(rows, self._job.words())
        now = time.time()
        self._fold(rows[begin:], first_byte + _size(rows[:begin]), now)
        self._next_byte = first_byte + told_bytes
        self._tell(untold)
        self._see_open_row(capture.open_row, now)
        self._state = watcher.settle(self._state, now)

    def _untold(self, rows: Sequence[str]) -> list[str]:
        if not self._told_rows:
            return list(rows[-LOG_ROWS:])
        return Scrollback(self._told_rows).new_rows(rows, is_whole=True) or []

    def _fold(self, rows: Sequence[str], at: int, now: float) -> None:
        for row in rows:
            end = at + _size((row,))
            if row != self._open_row:  # else it was seen while it was written
                self._event(Line(now, row, at, end))
            self._open_row, at = "", end

    def _tell(self, rows: Sequence[str]) -> None:
        if rows:
            start, self._next_byte = self._next_byte, self._next_byte + _size(rows)
            text = "".join(f"{row}\n" for row in rows)
            self._session.record("log", {"start": start, "end": self._next_byte, "text": text})

    def _see_open_row(self, row: str, now: float) -> None:
        if row and row != self._open_row and now - self._open_seen >= OPEN_ROW_S:
            self._open_row, self._open_seen = row, now
            self._event(Line(now, row, self._next_byte, self._next_byte, is_redraw=True))

    # -- what comes ----------------------------------------------------------------------------------

    def _follow(self) -> None:
        loop = self._loop
        self._sampler = Sampler(
            loop,
            Path(f"/proc/{self._job.pid}/cwd"),
            self._job,
            gpus=(),
            period_s=1.0,
            on_sample=self._sampled,
            on_finding=self._found,
        )
        self._sampler.job_pid = self._job.pid
        loop.on_signal(signal.SIGCHLD, self._reap)
        loop.every(POLL_S, self._poll)
        loop.every(1.0, lambda: self._event(Tick(time.time())))
        loop.after_each(self._publish)
        loop.run()
        self._sampler.end()

    def _reap(self) -> None:
        for helper in self._sampler.helpers if self._sampler else ():
            if helper.pid is not None and (ended := os.waitpid(helper.pid, os.WNOHANG))[0]:
                helper.ended(ended[1])

    def _poll(self) -> None:
        if self._session.is_cancelled.is_set():
            self._loop.stop()
            return
        is_alive = self._job.look(self._info.pid)  # asked first: all that it wrote is then on the screen
        if is_alive:
            self._job_row = self._cursor_row
        is_gone = False
        try:
            self._info = self._pane.info()
            self._read()
        except PaneGone:
            is_gone = True
        if is_gone or self._info.is_dead or (not is_alive and self._has_shell_spoken()):
            self._finish(End(time.time(), self._info.exit_code, self._info.signal, is_tail_unseen=is_gone))
            self._loop.stop()

    def _has_shell_spoken(self) -> bool:
        """Whether the shell that the job leaves behind has told of its end: the prompt comes after that."""
        self._died = self._died or time.monotonic()
        prompt = self._cursor_row
        return bool(prompt and prompt != self._job_row) or time.monotonic() - self._died >= SHELL_S

    def _read(self) -> None:
        if self._info.is_alternate:
            return
        is_whole = self._info.num_history <= NEWEST_ROWS
        capture = self._pane.capture(self._info, num_rows=None if is_whole else NEWEST_ROWS)
        rows = self._scrollback.new_rows(capture.rows, is_whole=is_whole)
        if rows is None:  # more came since the last look than a usual one holds
            capture = self._pane.capture(self._info)
            rows = self._scrollback.new_rows(capture.rows, is_whole=True) or []
        now = time.time()  # one time for all of a look: rows that were read together came at unknown distances
        self._fold(rows, self._next_byte, now)
        self._tell(rows)
        self._see_open_row(capture.open_row, now)
        self._cursor_row = capture.open_row

    def _sampled(self, sample: Sample) -> None:
        self._event(sample)
        self._session.record("sample", sample)

    # -- what it amounts to --------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        self._state, findings = watcher.observe(self._state, event)
        for finding in findings:
            self._found(finding)

    def _found(self, finding: Finding) -> None:
        self._session.record("finding", finding)

    def _finish(self, end: End) -> None:
        self._end = end
        self._event(end)
        self._publish()
        self._session.record("status", self._status())

    def _publish(self) -> None:
        verdict, now = watcher.judge(self._state), time.time()
        shown = self._shown
        is_same = shown is not None and (verdict.verdict, verdict.cause) == (shown.verdict, shown.cause)
        verdict = replace(verdict, since=shown.since if is_same and shown is not None else now)
        if verdict != shown and (not is_same or now - self._published >= PUBLISH_S or self._end is not None):
            self._shown, self._published = verdict, now
            self._session.record("verdict", verdict)


def _complain(text: str) -> None:
    os.write(2, text.encode())


def _size(rows: Sequence[str]) -> int:
    """The bytes of these rows, newlines included."""
    return sum(len(row.encode()) + 1 for row in rows)


def _context(call: Call, pid: int | None) -> watcher.Context:
    return watcher.Context(
        baseline=load(call.home, call.request["baseline"]) if call.request.get("baseline") else Baseline(),
        pid=pid,
        joined_midway=True,
    )


def begin_of_job(rows: Sequence[str], words: Sequence[str]) -> int:
    """The row after the one in which the job was started, so that an earlier job's end is not taken for this one's.

    >>> begin_of_job(["$ python a.py -x", "Killed", "$ python a.py -x", "step 1"], ["python3.11", "a.py", "-x"])
    3
    >>> begin_of_job(["$ sleep 5", "step 5"], ["sleep", "5"])
    1
    """
    told = " " + " ".join(words[1:])
    if len(words) < 2:
        return 0
    found = (at + 1 for at in range(len(rows) - 1, -1, -1) if rows[at].endswith(told))
    return next((at for at in found if _names_program(rows[at - 1].removesuffix(told), words[0])), 0)


def _names_program(typed: str, program: str) -> bool:
    """Whether what was typed before the arguments ends in the program's name: `python` may have become `python3.11`."""
    last, name = (PurePath(word).name for word in (typed.rpartition(" ")[2], program))
    return bool(last) and (name.startswith(last) or last.startswith(name))


def watch(call: Call) -> RunStatus:
    """Streams what a session's pane shows and what it amounts to, as run-watch does; returns the last status.

    `session` is a name or any tmux target, `socket` its server's, `told` the last rows that the client knows and
    `start` the byte after them. Raises UsageError where there is no such session.
    """
    pane, info = open_pane(call.request["session"], call.request.get("socket") or "")
    return PaneWatch(call, pane, info).run()
