"""What a login shell sets, asked of real shells."""

from __future__ import annotations

import subprocess
from typing import Any

from opsctl.agent.env import steering


def test_what_a_profile_prints_and_sets_is_told_apart(monkeypatch: Any) -> None:
    monkeypatch.setattr(steering, "_login_shell", lambda: "/bin/sh")
    monkeypatch.setattr(steering, "_SHELL_LIMIT_S", 120.0)
    profile = "echo PYTHONHOME=/banner; export PYTHONPATH=/by/hand EDITOR='a\nPYTHONHOME=/in/a/value'; "

    def spawn(argv: tuple[str, ...], **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen((argv[0], "-c", profile + argv[-1]), env={"PATH": "/usr/bin:/bin"}, **streams)

    (note,) = steering.login_notes({"PYTHONPATH": "/inherited"}, spawn=spawn)
    assert "a login shell on the target sets PYTHONPATH (/by/hand)" in note
    assert steering.login_notes({"PYTHONPATH": "/by/hand"}, spawn=spawn) == ()


def test_a_shell_that_cannot_be_asked_says_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(steering, "_SHELL_LIMIT_S", 0.05)
    children = []

    def spawn(argv: tuple[str, ...], **streams: Any) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen(("sleep", "60"), **streams))
        return children[0]

    assert steering.login_notes({}, spawn=spawn) == ()
    with children[0] as child:
        child.kill()


def test_only_what_reaches_the_job_and_has_an_effect_is_drift(tmp_path: Any) -> None:
    environment = {"PYTHONPATH": str(tmp_path), "LD_PRELOAD": "libx.so", "PYTHONHOME": "", "LD_LIBRARY_PATH": "/x"}
    assert [one.path for one in steering.variable_drifts(environment)] == ["PYTHONPATH", "LD_PRELOAD"]
    assert [one.path for one in steering.variable_drifts(environment, overridden=("PYTHONPATH",))] == ["LD_PRELOAD"]
    assert steering.variable_drifts({"PYTHONPATH": f"{tmp_path}/none:"}) == ()
