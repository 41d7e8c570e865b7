"""A watch with a synthetic clock: says what a job printed and how it fared, and keeps findings and verdict."""

from __future__ import annotations

import json

from opsctl.detect import watcher
from opsctl.records.events import End, Event, GpuSample, Line, ProcessSample, Sample, Tick
from opsctl.records.verdict import Finding, Verdict


class Watching:
    """One job under watch; every method moves the clock on and folds one event in."""

    def __init__(self, **context: object) -> None:
        self.now = 1000.0
        self.state = watcher.start(watcher.Context(**context), self.now)  # type: ignore[arg-type]
        self.findings: list[Finding] = []
        self.at = 0

    def event(self, event: Event) -> Verdict:
        self.state, found = watcher.observe(self.state, event)
        self.findings += found
        return self.verdict

    @property
    def verdict(self) -> Verdict:
        return watcher.judge(self.state)

    @property
    def pair(self) -> tuple[str, str]:
        return self.verdict.verdict, self.verdict.cause

    def line(self, text: str, *, after_s: float = 0.0, source: str = "log") -> Verdict:
        self.now += after_s
        self.at += len(text) + 1
        return self.event(Line(self.now, text, self.at - len(text) - 1, self.at, source))

    def text(self, text: str) -> Verdict:
        for row in text.splitlines():
            self.line(row)
        return self.verdict

    def steps(
        self, number: int, *, first: int = 1, every_s: float = 1.0, form: str = "step {} loss 2.{:02d}"
    ) -> Verdict:
        for step in range(first, first + number):
            self.line(form.format(step, step % 7), after_s=every_s)
        return self.verdict

    def metrics(self, **values: object) -> Verdict:
        return self.line(json.dumps(values), source="metrics")

    def tick(self, after_s: float) -> Verdict:
        self.now += after_s
        return self.event(Tick(self.now))

    def ticks(self, seconds: float, *, every_s: float = 1.0) -> Verdict:
        end = self.now + seconds
        while self.now < end:
            self.tick(every_s)
        return self.verdict

    def sample(
        self, *gpus: GpuSample, after_s: float = 0.5, states: str = "R", cpu_s: float | None = None, problem: str = ""
    ) -> Verdict:
        self.now += after_s
        process = None if cpu_s is None else ProcessSample(len(states), states, cpu_s)
        return self.event(Sample(self.now, gpus, process, problem))

    def end(self, *, after_s: float = 0.1, **how: object) -> Verdict:
        self.now += after_s
        return self.event(End(self.now, **how))  # type: ignore[arg-type]

    def causes(self) -> list[str]:
        return [finding.cause for finding in self.findings]


def gpu(
    index: int = 0, *, util: float = 97.0, used: float = 40000.0, power: float = 600.0, total: float = 81559.0
) -> GpuSample:
    """One busy GPU, but for what is said."""
    return GpuSample(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", util, used, total, power, 700.0, 60.0)
