"""Words are quoted once and come back as they were; a secret never shows."""

from __future__ import annotations

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.target.command import Secret, shell_words

words = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), min_size=1, max_size=5)


@settings(max_examples=50)
@given(words)
def test_a_shell_reads_back_the_same_words(argv: list[str]) -> None:
    script = "printf '%s\\0' " + shell_words(tuple(argv))
    output = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout
    assert output.split(b"\0")[:-1] == [word.encode() for word in argv]


def test_a_secret_shows_only_when_revealed() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "hunter2"
