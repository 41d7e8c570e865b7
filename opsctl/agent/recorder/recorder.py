"""The recorder itself: joins job, log, telemetry and detection, restarts the job, and writes the exit record."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from opsctl.agent.baselines import good_run
from opsctl.agent.files import read_record, write_record
from opsctl.agent.home import Home, RunPaths
from opsctl.agent.leases import release
from opsctl.agent.processes import Stat
from opsctl.agent.recorder.detection import Detection, context_of
from opsctl.agent.recorder.end import attempt_of, end_of, never_started
from opsctl.agent.recorder.exit_record import ExitFile
from opsctl.agent.recorder.findings import unkillable
from opsctl.agent.recorder.helper import Helper
from opsctl.agent.recorder.holder import start_job
from opsctl.agent.recorder.job import RunningJob
from opsctl.agent.recorder.kernel import UNREADABLE, pid_namespace
from opsctl.agent.recorder.kernel_watch import KernelWatch
from opsctl.agent.recorder.loop import Loop
from opsctl.agent.recorder.members import Members
from opsctl.agent.recorder.notify import Notifier, news
from opsctl.agent.recorder.output import Output
from opsctl.agent.recorder.pane import Pane
from opsctl.agent.recorder.restarts import restarts
from opsctl.agent.recorder.sampler import Sampler
from opsctl.agent.recorder.smi import SmiLoop
from opsctl.agent.recorder.spawn import environment
from opsctl.agent.recorder.stacks import Stacks
from opsctl.agent.recorder.telemetry import Telemetry
from opsctl.agent.signals import members_of
from opsctl.records.events import Sample
from opsctl.records.process import ProcessIdentity
from opsctl.records.run import Attempt, ExitRecord, RunRecord, StopRequest
from opsctl.records.verdict import Verdict

POLL_PERIOD_S = 0.25
TICK_PERIOD_S = 1.0
TURN_SLACK_S = 0.005  # times are kept to the millisecond
FIGURES_PERIOD_S = 10.0
LEFTOVER_GRACE_S = 5.0  # for what a job leaves behind when it ends by itself


def now_s() -> float:
    """Now, as the files hold it, so that live and replayed detection see equal times."""
    return round(time.time(), 3)


class Recorder:
    """One run, from its first process to its exit record."""

    def __init__(
        self,
        paths: RunPaths,
        record: RunRecord,
        *,
        secrets: Mapping[str, str],
        agent_argv: tuple[str, ...],
        complain: Callable[[str], None],
    ) -> None:
        self._paths = paths
        self._record = record
        self._spec = record.spec
        self._secrets = secrets
        self._exit_file = ExitFile(paths.exit)
        self._loop = Loop(complain)
        self._notifier = Notifier(self._loop, record.spec.notify, agent_argv, lambda: self._detection.is_well)
        self._stacks = Stacks(self._loop, paths.folder, agent_argv, lambda finding: self._detection.add(finding))
        self._detection = Detection(paths, on_change=self._tell, complain=complain)
        self._output = Output(paths, Pane(self._loop, self._type), self._detection)
        self._telemetry = Telemetry(paths.telemetry, paths.old_telemetry)
        self._seen = Members(record.run_id)
        self._sampler = Sampler(
            self._loop,
            paths.folder,
            self._seen,
            gpus=record.spec.gpus,
            period_s=record.spec.sample_period_s,
            on_sample=self._sampled,
            on_finding=self._detection.add,
        )
        self._job: RunningJob | None = None
        self._attempts: list[Attempt] = []
        self._started = 0.0
        self._stop: StopRequest | None = None
        self._is_over = False

    def run(self) -> OSError | None:
        """Record until the run is over; returns the reason when the job could not be started at all."""
        self._kernel = self._listen_to_kernel()
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            self._loop.on_signal(number, self._stop_asked)
        error = self._start_job()
        self._loop.every(POLL_PERIOD_S, lambda: self._output.poll(now_s()))
        self._loop.every(TICK_PERIOD_S, self._tick)
        self._loop.every(FIGURES_PERIOD_S, self._detection.keep_figures)
        self._loop.after_each(lambda: self._detection.publish(now_s()))
        self._loop.run()
        return error

    # -- start -------------------------------------------------------------------------------------

    def _start_job(self) -> OSError | None:
        self._started = now_s()
        self._kernel.begin()
        folder = self._paths.folder
        variables = environment(
            self._spec, os.environ, run_id=self._record.run_id, folder=folder, secrets=self._secrets
        )
        try:
            job = start_job(self._spec.argv, variables, folder)
        except OSError as error:
            self._never_started(error)
            return error
        good = good_run(self._paths, self._spec.baseline)
        context = context_of(self._spec, self._record.gpu_uuids, good)
        self._detection.begin(context, self._started, log_offset=self._output.log.end)
        self._job = RunningJob(
            self._loop,
            job,
            self._members,
            leftover_grace_s=min(LEFTOVER_GRACE_S, self._spec.stop_grace_s),
            on_output=lambda data: self._output.add(data, now_s()),
            on_exit=self._exited,
            on_gone=self._gone,
        )
        self._sampler.job_pid = self._kernel.job_pid = job.process.pid
        return self._name_job(self._job, job.process)

    def _name_job(self, job: RunningJob, process: ProcessIdentity) -> OSError | None:
        """Write down which process is the job; one that cannot be named at all is ended: nobody could find it."""
        self._record = replace(self._record, job=process)
        try:
            write_record(self._paths.record, self._record)
        except OSError as error:
            if self._attempts:
                return None  # started again on a full disk: the recorder, which is named, answers for it
            job.end(0.0)
            return error
        return None

    def _never_started(self, error: OSError) -> None:
        self._attempts.append(never_started(len(self._attempts) + 1, self._started, now_s(), error))
        sentence = f"{self._spec.argv[0]} cannot be started: {error.strerror}"
        self._detection.show(Verdict("crashed", "bad_arguments", since=now_s(), evidence=(sentence,)), now_s())
        self._finish()

    def _listen_to_kernel(self) -> KernelWatch:
        kernel = KernelWatch(
            self._loop,
            self._paths.folder,
            self._seen,
            lambda text, is_own: self._detection.kernel_row(text, now_s(), is_own=is_own),
        )
        if not kernel.reads:
            self._spec = replace(self._spec, notes=(*self._spec.notes, UNREADABLE))
            self._record = replace(self._record, spec=self._spec, reads_kernel=False, pid_namespace=pid_namespace())
        return kernel

    # -- while it runs -------------------------------------------------------------------------------

    @property
    def _helpers(self) -> tuple[SmiLoop | Helper, ...]:
        """Whatever has a child of ours."""
        return self._notifier.helper, self._stacks.helper, *self._sampler.helpers

    def _members(self) -> tuple[Stat, ...]:
        children = {child.pid or 0 for child in self._helpers}
        holder = self._job.holder_pid if self._job is not None else None
        return members_of(self._record.run_id, reaper=os.getpid(), holder=holder, helpers=children)

    def _type(self, keys: bytes) -> None:
        if self._job is not None:
            self._job.type(keys)

    def _sampled(self, sample: Sample) -> None:
        self._telemetry.append(sample)
        self._detection.sample(sample)

    def _tick(self) -> None:
        if self._stop is None and self._paths.stop_request.exists():
            self._stop_asked()  # another user of a shared home cannot send a signal
        self._kernel.count(now_s())
        self._tell_time()
        self._output.retry()
        self._telemetry.retry()
        self._detection.retry()

    def _tell_time(self) -> None:
        """A tick, and one more at the moment when silence alone will say something, if that comes before the next."""
        turn_s = self._detection.tick(now_s())
        if turn_s is not None and turn_s < TICK_PERIOD_S:
            self._loop.later(turn_s + TURN_SLACK_S, lambda: self._detection.tick(now_s()))

    def _tell(self, verdict: Verdict, before: Verdict | None) -> None:
        if before is not None:  # every run begins as starting: no news
            self._notifier.tell(news(self._record, verdict, before, now_s()))
        if verdict.verdict == "hung":
            self._stacks.take(verdict.cause)

    # -- end -------------------------------------------------------------------------------------------

    def _stop_asked(self) -> None:
        request = read_record(StopRequest, self._paths.stop_request)
        self._stop = request or StopRequest("somebody who sent the recorder a signal", now_s())
        grace_s = self._stop.grace_s if self._stop.grace_s is not None else self._spec.stop_grace_s
        if self._job is not None:
            self._job.end(grace_s)
        else:
            self._finish()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._job is not None and pid == self._job.pid:
                self._job.exited(status)
                continue
            for child in self._helpers:
                if child.pid == pid:
                    child.ended(status)

    def _exited(self, status: int) -> None:
        """The job's first process ended: the verdict is news at once, whatever must still be cleared away."""
        now = now_s()
        self._output.release(now)
        self._output.poll(now)
        is_asked, is_oom = self._stop is not None, self._kernel.oom_killed(now)
        end = end_of(status, now, stop_requested=is_asked, oom_killed=is_oom, folder=self._paths.folder)
        self._detection.end(end)
        self._detection.publish(now, at_once=True)
        verdict = self._detection.verdict
        attempt = attempt_of(len(self._attempts) + 1, self._started, end, verdict)
        is_again = restarts(self._spec.restart, [*self._attempts, attempt], verdict)
        self._attempts.append(replace(attempt, restart=is_again))
        if is_again:
            policy = self._spec.restart
            news = f"starts again in {policy.backoff_s:g} s: restart {len(self._attempts)} of {policy.max}"
            self._detection.show(replace(verdict, advice=news), now)

    def _gone(self) -> None:
        """No process of the attempt is left, save what the kernel holds."""
        if self._job is not None and self._job.unkillable:
            self._detection.add(unkillable(now_s(), self._job.unkillable))
        self._job = None
        self._sampler.job_pid = self._kernel.job_pid = None
        if self._attempts[-1].restart and self._stop is None:
            self._loop.later(self._spec.restart.backoff_s, self._again)
        else:
            self._finish()

    def _again(self) -> None:
        if not self._is_over:
            self._start_job()

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        home = Home(self._paths.folder.parents[1])
        for step in (
            self._sampler.end,
            self._stacks.helper.end,
            lambda: self._output.release(now_s()),
            self._output.log.close,
            self._telemetry.close,
            self._detection.close,
            lambda: Path(self._record.socket).unlink(missing_ok=True),  # a tmux server leaves it behind
            lambda: release(home, self._record.run_id),
        ):
            self._loop.guard(step)  # whatever fails here, the record comes
        log, verdict = self._output.log, self._detection.verdict
        record = ExitRecord(self._record.run_id, tuple(self._attempts), verdict, log.size, log.num_missing_bytes)
        self._exit_file.insist(self._loop, record, lambda: self._notifier.drain(self._loop.stop))
