"""What is run: argv words, quoted exactly once, and values that must not be shown."""

from __future__ import annotations

import shlex

Argv = tuple[str, ...]


class Secret:
    """A value that never shows itself: not in str, repr, formatting or a traceback's locals."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value; call it only where the value leaves for its one reader."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"


def shell_words(argv: Argv) -> str:
    """The one string that a POSIX shell reads back as `argv`; also how commands are shown.

    >>> shell_words(("echo", "it's", "a b"))
    'echo \\'it\\'"\\'"\\'s\\' \\'a b\\''
    """
    return shlex.join(argv)
