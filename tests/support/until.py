"""Waiting for something to become true, with a deadline; the only wait that tests use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(predicate: Callable[[], T], within_s: float = 60.0, *, period_s: float = 0.02) -> T:
    """The first truthy value of `predicate`; fails the test with its last value after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not true within {within_s:g} s; last value: {value!r}")
        time.sleep(period_s)
