"""Replicas that must live in threads of one process: a compiled copy each, warmed one after another, sealed together.

torch.compile is not thread safe in any release. What makes it hold: each replica has code objects of its own, with one
entry each (a shared one loses entries while all of them are warm); nothing compiles while another replica runs; and
before torch 2.14, whose tracing flag is still one for all threads, a lock over forward and backward of every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from trainer.compile.counters import Counters
from trainer.compile.discipline import Discipline
from trainer.compile.errors import CompileError
from trainer.compile.guard import Compiled

Lock = Literal["auto", "on", "off"]
Release = tuple[int, int]


def release_of(version: str) -> Release:
    """Return (major, minor).

    >>> release_of("2.13.0+cpu")
    (2, 13)
    """
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def needs_lock(version: str | None = None) -> bool:
    """Return whether this release of torch needs a lock over forward and backward of threads that run compiled code."""
    return release_of(version or torch.__version__) < (2, 14)


class Replica:
    """What one replica's thread holds: its guarded functions, its turn to warm them, and its steps."""

    def __init__(self, index: int, replicas: ThreadedReplicas) -> None:
        self.index, self.name = index, f"replica {index}"
        self._replicas = replicas

    def guard(self, target: Callable[..., Any] | nn.Module, *, name: str | None = None) -> Compiled:
        """Return this replica's own compiled copy of a function or of a module's call."""
        return self._replicas.discipline.guard(target, name=name, replica=self.name)

    def warm(self, compiled: Compiled, *arguments: Any, **keywords: Any) -> Any:
        """Compile forward and backward, while no other replica compiles or runs; gradients are left as they were."""
        with self._replicas.turn:
            return compiled.warm(*arguments, **keywords)

    def seal(self) -> None:
        """Wait until every replica is warm, then forbid compiling; raises SealBroken where something is not warm."""
        self._replicas.meet_and_seal()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Hold one forward and backward; raises SealBroken afterwards if anything was compiled meanwhile."""
        with self._replicas.lock:
            yield
        self._replicas.discipline.verify()


class ThreadedReplicas:
    """The replicas of a process whose replicas are threads.

    `lock` over steps: `auto` where this release needs it, `on`, or `off` where a preflight has shown no misses.
    """

    def __init__(self, num_replicas: int, discipline: Discipline | None = None, *, lock: Lock = "auto") -> None:
        self.num_replicas = num_replicas
        self.discipline = discipline or Discipline()
        self.turn = threading.RLock()
        self.is_locked = needs_lock() if lock == "auto" else lock == "on"
        self.lock: AbstractContextManager[Any] = self.turn if self.is_locked else nullcontext()
        self._all_warm = threading.Barrier(num_replicas, action=self._seal)
        self._broken: CompileError | None = None

    @contextmanager
    def joined(self, index: int) -> Iterator[Replica]:
        """Hold the thread of one replica; if it fails before the seal, the others are told and do not wait for it.

        Raises SwitchRefused where a switch would silence torch in this thread.
        """
        try:
            self.discipline.enter_thread()
            yield Replica(index, self)
        except BaseException:
            if not self.discipline.is_sealed:  # after it, an abort would catch those who have not yet woken up
                self._all_warm.abort()
            raise

    def meet_and_seal(self) -> None:
        """Wait for all replicas, seal once, and tell all of them if that failed."""
        try:
            self._all_warm.wait()
        except threading.BrokenBarrierError:
            reason = self._broken or CompileError("another replica failed before all were warm; its own error says why")
            raise reason from None

    def counters(self) -> Counters:
        """Return what was compiled so far, by all replicas."""
        return self.discipline.counters()

    def close(self) -> None:
        """Lift the seal; call it when the threads have ended."""
        self.discipline.close()

    def _seal(self) -> None:
        try:
            self.discipline.seal()
        except CompileError as error:
            self._broken = error
            raise
