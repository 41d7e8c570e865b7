"""Processes that work on an environment's files beside a job: threads would wait for each other's Python."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from opsctl.agent.recorder.spawn import die_with_parent
from opsctl.errors import CommandFailed


@contextlib.contextmanager
def workers() -> Iterator[Executor]:
    """One process a core, forked now: before threads, which a fork would leave behind with their locks held.

    They end with the block, and are killed when this process ends, however that ends. Threads take their place where
    there is no room in /dev/shm, in which processes keep their locks.
    """
    with _pool(len(os.sched_getaffinity(0))) as pool:
        try:
            pool.submit(os.getpid).result()
            yield pool
        except BrokenProcessPool:
            raise CommandFailed(
                "a process that worked on the files was killed", hint="the target may be short of memory: see dmesg"
            ) from None


def _pool(num: int) -> Executor:
    try:
        forking = multiprocessing.get_context("fork")
        return ProcessPoolExecutor(num, mp_context=forking, initializer=die_with_parent)
    except OSError:
        return ThreadPoolExecutor(num)
