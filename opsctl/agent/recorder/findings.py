"""What the recorder itself finds, beside what detection finds. Pure."""

from __future__ import annotations

from opsctl.records.verdict import Finding


def log_behind(now: float) -> Finding:
    """The finding for a log that cannot be written."""
    return Finding(
        time=now,
        cause="disk_full",
        severity="error",
        summary="the run's log cannot be written, since its disk is full; the job goes on",
        advice="free space there: what memory still holds of the log is then written",
    )


def disk_low(now: float, free_mib: float) -> Finding:
    """The finding for a disk that will be full soon."""
    return Finding(
        time=now,
        cause="disk_low",
        severity="warning",
        summary=f"{free_mib:.0f} MiB are left on the disk that holds the run",
        advice="free space there before the next checkpoint; `opsctl train list` shows what old runs hold",
    )


def unkillable(now: float, pids: tuple[int, ...]) -> Finding:
    """The finding for processes that outlive SIGKILL."""
    named = ", ".join(map(str, pids))
    return Finding(
        time=now,
        cause="driver_hang",
        severity="error",
        summary=f"processes that nobody can end, since they wait inside the kernel: {named}",
        advice="their GPUs stay in use until the machine restarts",
    )
