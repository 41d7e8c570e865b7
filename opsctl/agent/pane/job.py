"""The job that runs in a pane: which process it is, what belongs to it, whether it lives. Reads /proc only."""

from __future__ import annotations

from opsctl.agent.processes import Stat, identity, is_alive, pids, sample, stat, words
from opsctl.records.events import ProcessSample
from opsctl.records.process import ProcessIdentity

SHELLS = frozenset({"sh", "bash", "zsh", "fish", "dash", "ksh", "tcsh", "csh", "ash", "busybox", "login", "su", "sudo"})


class PaneJob:
    """The process that works in a pane; one that was seen stays the job until it ends."""

    def __init__(self) -> None:
        self.process: ProcessIdentity | None = None

    def look(self, pane_pid: int) -> bool:
        """Find the job where none is known yet; says whether it lives."""
        if self.process is None:
            pid = job_of(pane_pid)
            self.process = identity(pid) if pid is not None else None
        return is_alive(self.process)

    @property
    def pid(self) -> int | None:
        """The job's first process."""
        return self.process.pid if self.process else None

    def words(self) -> tuple[str, ...]:
        """Its command line, () where it is gone."""
        return command_line(self.pid) if self.pid is not None else ()

    def pids(self) -> set[int]:
        """The job and all below it."""
        return {self.pid, *below(self.pid)} if self.pid is not None else set()

    def sample(self, first: int) -> ProcessSample:
        """States, processor time and memory of the job and all below it."""
        return sample((first, *sorted(below(first))))


def command_line(pid: int) -> tuple[str, ...]:
    """The words that a process was started with."""
    return tuple(word.decode(errors="replace") for word in words(pid) if word)


def _all() -> dict[int, Stat]:
    found = ((pid, stat(pid)) for pid in pids())
    return {pid: one for pid, one in found if one is not None and one.state not in "ZX"}


def below(pid: int, stats: dict[int, Stat] | None = None) -> set[int]:
    """All living descendants of a process."""
    stats = _all() if stats is None else stats
    found: set[int] = set()
    newest = {pid}
    while newest:
        newest = {one.pid for one in stats.values() if one.parent in newest and one.pid not in found}
        found |= newest
    return found


def job_of(pane_pid: int) -> int | None:
    """The first process below the shells that wait for a person: the job. None where only such shells are there."""
    stats = _all()
    level = [pane_pid] if pane_pid in stats else []
    while level:
        workers = [pid for pid in level if not _is_shell(pid)]
        if workers:
            return min(workers, key=lambda pid: stats[pid].start)
        level = [one.pid for one in stats.values() if one.parent in level]
    return None


def _is_shell(pid: int) -> bool:
    """Whether a process is a shell at its prompt; one that runs a script or -c is a job itself."""
    command = command_line(pid)
    if not command:
        return True  # gone
    name = command[0].removeprefix("-").rpartition("/")[2]
    return name in SHELLS and all(_is_shell_option(word) for word in command[1:])


def _is_shell_option(word: str) -> bool:
    """Whether a word changes a shell that waits for a person; -c and a script's name make it a job."""
    return word.startswith("--") or (word.startswith("-") and "c" not in word)
