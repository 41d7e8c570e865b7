"""One thread that waits for descriptors, signals and times, and does nothing else while none of them comes."""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import os
import selectors
import signal
import time
import traceback
from collections.abc import Callable
from types import FrameType

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
Action = Callable[[], object]
MAX_FAULTS = 100


def _woken(signum: int, frame: FrameType | None) -> None:
    """Only the byte that Python writes to the wake-up descriptor counts."""


class Loop:
    """Calls what is registered when its time or data comes; `stop` ends `run`.

    An action that raises is told to `complain` and costs nothing else, until MAX_FAULTS have piled up.
    """

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self._num_faults = 0
        self._selector = selectors.DefaultSelector()
        self._times: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._on_signal: dict[int, Action] = {}
        self._is_running = True
        self._after: list[Action] = []
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self.watch(read_fd, READ, lambda _: self._dispatch_signals(read_fd))

    def watch(self, descriptor: int, events: int, action: Callable[[int], None]) -> None:
        """Call `action(events)` whenever the descriptor is ready; replaces an earlier registration."""
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, action)
        else:
            self._selector.register(descriptor, events, action)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; one that is not watched is left alone."""
        with contextlib.suppress(KeyError, ValueError):  # never watched, or forgotten before
            self._selector.unregister(descriptor)

    def on_signal(self, number: signal.Signals, action: Action) -> None:
        """Call `action` soon after the signal, outside of any handler."""
        self._on_signal[int(number)] = action
        signal.signal(number, _woken)

    def later(self, delay_s: float, action: Action) -> None:
        """Call `action` once, `delay_s` from now."""
        heapq.heappush(self._times, (time.monotonic() + delay_s, next(self._numbers), action))

    def every(self, period_s: float, action: Action) -> None:
        """Call `action` again and again; a late call does not make the next ones bunch up."""

        def again() -> None:
            self.later(period_s, again)
            action()

        self.later(period_s, again)

    def after_each(self, action: Action) -> None:
        """Call `action` after each round of events."""
        self._after.append(action)

    def stop(self) -> None:
        """Let `run` return after this round."""
        self._is_running = False

    def run(self) -> None:
        """Serve until `stop`."""
        while self._is_running:
            for key, events in self._selector.select(self._patience()):
                if key.fd in self._selector.get_map():  # an earlier action of this round may have dropped it
                    self.guard(functools.partial(key.data, events))
            self._run_due()
            for action in self._after:
                self.guard(action)

    def guard(self, action: Action) -> None:
        """Call `action`; a bug in one part must not cost the run its log and its exit record."""
        try:
            action()
        except Exception as error:
            self._num_faults += 1
            self.complain("".join(traceback.format_exception(error)))
            if self._num_faults >= MAX_FAULTS:
                raise

    def _patience(self) -> float | None:
        return max(0.0, self._times[0][0] - time.monotonic()) if self._times else None

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._times and self._times[0][0] <= now:
            self.guard(heapq.heappop(self._times)[2])

    def _dispatch_signals(self, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):  # read by an earlier wake-up
            for number in dict.fromkeys(os.read(descriptor, 4096)):
                action = self._on_signal.get(number)
                if action:
                    self.guard(action)
