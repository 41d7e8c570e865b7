"""The error tree: every failure that opsctl foresees, with its exit code and a way out.

    OpsctlError (70)
    |- CheckFailed (1)          checked, and the answer is no
    |- UsageError (2)           arguments that make no sense together
    |- ConfigError (3)          opsctl.yaml, a lock or a recipe: file, key path, what is wrong
    |- TargetError (4)
    |  |- Unreachable           the host did not answer or refused us
    |  |- ContainerMissing      no such container, or it does not run
    |  |- Disconnected          was up, then went away in the middle
    |- CommandFailed (5)        a step failed: on the target, or with a file here
    |  |- DiskFull              ... since no space is left there
    |- MissingTool (6)          a program that is needed on the target is not there
    |- TimedOut (7)
    |- Busy (8)                 somebody holds what is asked for: who, since when, why
    |- ProtocolError (70)       the agent spoke something else than we do

Shipped inside the agent: standard library only.
"""

from __future__ import annotations

import errno
from typing import ClassVar

EXIT_OK = 0
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
EXIT_TERMINATED = 143
# `exec` and `shell` pass the remote status through; these two are opsctl's own
EXEC_TIMED_OUT = 124
EXEC_FAULT = 125


class OpsctlError(Exception):
    """A foreseen failure; the message says what was tried, where, and what came back."""

    exit_code: ClassVar[int] = 70
    meaning: ClassVar[str] = "a bug in opsctl; the traceback is saved and its path printed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckFailed(OpsctlError):
    """A check ran and its answer is no."""

    exit_code = 1
    meaning = "checked, and the answer is no"


class UsageError(OpsctlError):
    """The arguments make no sense, alone or together."""

    exit_code = 2
    meaning = "usage: an unknown option or arguments that make no sense together"


class ConfigError(OpsctlError, ValueError):
    """A file that configures opsctl is wrong; the message names file and key path."""

    exit_code = 3
    meaning = "configuration: unknown key, bad value, missing file or reference"


class TargetError(OpsctlError):
    """The target cannot be worked with."""

    exit_code = 4
    meaning = "target unreachable, container missing, or disconnected in the middle"


class Unreachable(TargetError):
    """The host did not answer, or refused us."""


class ContainerMissing(TargetError):
    """The host answers, but the container does not exist or does not run."""


class Disconnected(TargetError):
    """The target was up and went away in the middle."""


class CommandFailed(OpsctlError):
    """A step ran and failed, on the target or with a file here."""

    exit_code = 5
    meaning = "a step failed: on the target, or reading or writing a file here"


class DiskFull(CommandFailed):
    """A step failed since no space is left."""


class MissingTool(OpsctlError):
    """A program that is needed on the target is not there."""

    exit_code = 6
    meaning = "a program that is needed on the target is missing"


class TimedOut(OpsctlError, TimeoutError):
    """Something took longer than its limit."""

    exit_code = 7
    meaning = "timed out"


class Busy(OpsctlError):
    """Somebody holds what is asked for; the message says who, since when and why."""

    exit_code = 8
    meaning = "busy: the run, lock or GPU is held already"


class ProtocolError(OpsctlError):
    """The agent spoke something else than this version does."""


# what disks, limits and permissions answer; any other number may be a fault of ours
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE)


def foreseen(error: OSError) -> OpsctlError | None:
    """What the system refused us here, as one row that names the file; None where it may be a bug.

    >>> foreseen(OSError(30, "Read-only file system", "/a/b")).message
    'cannot use /a/b: Read-only file system'
    """
    name = f"cannot use {error.filename}" if error.filename else "this machine refused"
    if error.errno in FULL:
        return DiskFull(f"{name}: {error.strerror}", hint="free space on this machine, then run the command again")
    if error.errno in REFUSED:
        return CommandFailed(f"{name}: {error.strerror}", hint="check owner, mode and limits on this machine")
    return None


EXIT_MEANINGS: dict[int, str] = {
    EXIT_OK: "done, or checked and all is well",
    **{
        cls.exit_code: cls.meaning
        for cls in (
            CheckFailed,
            UsageError,
            ConfigError,
            TargetError,
            CommandFailed,
            MissingTool,
            TimedOut,
            Busy,
            OpsctlError,
        )
    },
    EXEC_TIMED_OUT: "`exec` alone: timed out; its other codes are the remote command's",
    EXEC_FAULT: "`exec` alone: opsctl itself failed",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C)",
    EXIT_READER_GONE: "the reader of our output went away",
    EXIT_TERMINATED: "terminated (SIGTERM)",
}


def _subclasses(cls: type[OpsctlError]) -> list[type[OpsctlError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _subclasses(child))]


def error_named(kind: str, message: str, *, hint: str = "") -> OpsctlError:
    """Build the error whose class is called `kind`; an unknown name gives the root class.

    >>> error_named("Busy", "held by ana").exit_code
    8
    """
    classes = {cls.__name__: cls for cls in _subclasses(OpsctlError)}
    return classes.get(kind, OpsctlError)(message, hint=hint)
