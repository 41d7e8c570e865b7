"""The error tree keeps its exit codes, and an error comes back from the agent as what it was."""

from __future__ import annotations

import pytest

from opsctl import errors
from opsctl.errors import EXIT_MEANINGS, Busy, OpsctlError, error_named


def test_every_class_has_a_documented_exit_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, OpsctlError)]
    assert len(classes) > 10
    assert {cls.exit_code for cls in classes} <= set(EXIT_MEANINGS)


@pytest.mark.parametrize(("kind", "code"), [("Busy", 8), ("DiskFull", 5), ("ConfigError", 3), ("NoSuch", 70)])
def test_an_error_is_rebuilt_by_name(kind: str, code: int) -> None:
    error = error_named(kind, "what", hint="how")
    assert (error.exit_code, error.message, error.hint) == (code, "what", "how")


def test_the_specific_class_is_used() -> None:
    assert type(error_named("Busy", "x")) is Busy
