"""What to say when the start of a run is broken off: the target may have gone on with it. Never prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def starting(name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Around the call that starts run `name`: tell what Ctrl-C or SIGTERM may have left, and the way on."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            say(
                f"run {name} may have started, and goes on then: `opsctl train list` shows it, "
                f"`opsctl train stop {name}` ends it"
            )
        raise
