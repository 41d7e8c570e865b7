"""The ways a trainer command ends badly, each with its exit status. Only `trainer.cli` turns them into an exit.

TrainerError
|- ConfigError      2  the recipe, an override or a file that it names is wrong
|- NonFiniteError   3  the loss or a gradient is not finite; nothing was updated with it
(trainer.compile.SealBroken has status 4; a stop with a checkpoint is no error and has status 75)
"""

from __future__ import annotations

EXIT_FINISHED = 0
EXIT_CHECK_SAYS_NO = 1
EXIT_CONFIG = 2
EXIT_NON_FINITE = 3
EXIT_COMPILE = 4
EXIT_STOPPED = 75


class TrainerError(Exception):
    """Root of the errors that a user can cause and cure."""

    exit_code = 1


class ConfigError(TrainerError, ValueError):
    """A recipe, an override or a file that it names is wrong; the message names the key or the file."""

    exit_code = EXIT_CONFIG


class NonFiniteError(TrainerError):
    """The loss or the gradient norm is not finite; raised before the optimizer has used it."""

    exit_code = EXIT_NON_FINITE
