"""A healthy run as a recorder would see it, made from a seed: nothing in it is worth an alarm."""

from __future__ import annotations

import random
from collections.abc import Iterator

from opsctl.detect import watcher
from opsctl.records.events import End, Event, GpuSample, Line, ProcessSample, Sample, Tick
from opsctl.records.verdict import Verdict
from tests.support.jobs.lively import NOISE

CALM = frozenset({"starting", "healthy", "finished"})
KERNEL = (
    "nvme nvme0: I/O 512 QID 3 timeout, completion polled",
    "Out of memory: Killed process 99001 (chrome) total-vm:1kB, anon-rss:1kB",
    "NVRM: Xid (PCI:0000:b3:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping",
)
CAUGHT = (
    "Traceback (most recent call last):",
    '  File "/srv/lm/data.py", line 44, in decode',
    "    raise ValueError(name)",
    "ValueError: image 77 is truncated, skipped",
)


class HealthyRun:
    """A run's events, second by second: steps whose length varies, evaluations, checkpoints, noise."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._dice = random.Random(seed)
        self._seconds = seconds
        self._step_s = self._dice.choice((0.08, 0.5, 2.0, 11.0))
        self._varies = self._dice.choice((0.02, 0.3, 0.6))
        self._level_mib = self._dice.uniform(20_000, 70_000)
        self._swing_mib = self._dice.choice((0.0, 300.0, 15_000.0)) if self._varies > 0.1 else 0.0
        self._is_in_train = False

    def events(self) -> Iterator[Event]:
        """All events, in order."""
        now, next_sample, step = 0.0, 0.0, 0
        compile_s = self._dice.uniform(5, 200)
        for text, spent in self._rows(compile_s):
            while next_sample < now + spent:
                yield from self._seen(next_sample)
                next_sample += 0.5
            now += spent
            step += text.startswith("step ")
            yield Line(now, text)
            if now > self._seconds:
                break
        yield Line(now, "training finished")
        yield End(now + 1, exit_code=0)

    def _rows(self, compile_s: float) -> Iterator[tuple[str, float]]:
        """Rows and the seconds before each."""
        dice, step = self._dice, 0
        yield "loading model", 3.0
        yield "compiling model with torch.compile", 0.5
        self._is_in_train = True
        spent = compile_s
        while True:
            step += 1
            loss = 2 + 3 / (1 + step / 300) + dice.gauss(0, 0.05)
            yield f"step {step}/1000000 | loss {loss:.4f} | lr 3.0e-04", spent
            spent = self._step_s * max(0.2, dice.gauss(1.0, self._varies))
            if dice.random() < 0.02:
                yield dice.choice(NOISE), 0.0
            if dice.random() < 0.003:
                yield from ((row, 0.0) for row in CAUGHT)
            if step % 400 == 0:
                yield from self._pause("Running evaluation", dice.uniform(5, 90))
            if step % 250 == 0:
                yield from self._pause("Saving model checkpoint to out/step", dice.uniform(1, 40))

    def _pause(self, text: str, seconds: float) -> Iterator[tuple[str, float]]:
        self._is_in_train = False
        yield text, 0.1
        yield "eval_loss 2.41" if "eval" in text else "saved checkpoint", seconds
        self._is_in_train = True

    def _seen(self, now: float) -> Iterator[Event]:
        """What a recorder sees besides rows at this moment."""
        dice = self._dice
        swing = self._swing_mib * dice.random() + (0 if self._is_in_train else 4000)
        gpus = tuple(
            GpuSample(n, f"GPU-{n}", "NVIDIA H200", dice.uniform(60, 100), self._level_mib + swing, 143771.0,
                      dice.uniform(420, 690), 700.0, dice.uniform(55, 78))
            for n in range(8)
        )  # fmt: skip
        problem = "nvidia-smi does not answer" if dice.random() < 0.002 else ""
        cpu = ProcessSample(9, "RSSSSSSSS", now * 1.2, 9000.0)
        yield Sample(now, () if problem else gpus, cpu, problem, 900_000.0)
        if now == int(now):
            yield Tick(now)
        if dice.random() < 0.001:
            yield Line(now, dice.choice(KERNEL), source="kernel")


def judged(run: HealthyRun) -> Iterator[tuple[float, Verdict]]:
    """What the folds say of a run at every second and at its end."""
    context = watcher.Context(compile_expected=True, pid=4242, gpu_bus_ids=("0000:17:00.0",))
    state = watcher.start(context, 0.0)
    for event in run.events():
        state, _ = watcher.observe(state, event)
        if isinstance(event, (Tick, End)):
            yield event.time, watcher.judge(state)
