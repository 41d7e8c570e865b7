"""Workers end with the process that forked them, however that ends, and one that is killed is no riddle."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opsctl.agent.processes import identity, is_alive
from tests.support.until import until

WAITS = """
import os, time
from opsctl.agent.env.workers import workers
with workers() as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
ABORTS = """
import os
from opsctl.agent.env.workers import workers
from opsctl.errors import CommandFailed
try:
    with workers() as pool:
        pool.submit(os._exit, 9).result()
except CommandFailed as error:
    print(error.message)
"""
NO_ROOM = 'mount -t tmpfs -o ro tmpfs /dev/shm && exec "$@"'
IS_THREAD = """
import os
from opsctl.agent.env.workers import workers
with workers() as pool:
    print(pool.submit(os.getpid).result() == os.getpid())
"""


def test_workers_die_with_the_process_that_forked_them() -> None:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = identity(int(parent.stdout.readline()))
        assert worker is not None
        parent.kill()
    until(lambda: not is_alive(worker), within_s=30)


def test_a_killed_worker_is_told() -> None:
    ended = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, check=True)
    assert ended.stdout == "a process that worked on the files was killed\n"


@pytest.mark.root
def test_threads_work_where_processes_cannot_keep_their_locks() -> None:
    argv = ("unshare", "--mount", "sh", "-c", NO_ROOM, "sh", sys.executable, "-c", IS_THREAD)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "True\n"
