"""Inside every kind of container a process finds what a login would have set, and a real terminal if asked for one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from typing import Any

import pytest

from opsctl.config import TargetConfig
from opsctl.ops.workspace import build_target
from opsctl.target.client import AgentClient
from opsctl.target.target import Target
from tests.support.place import USER, Place
from tests.support.places import combinations

TELL = """
import getpass, json, locale, os, sys, tempfile
names = ("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LC_ALL", "PATH")
print(json.dumps({name: os.environ.get(name) for name in names} | {
    "getuser": getpass.getuser(), "encoding": sys.getfilesystemencoding(), "uid": os.getuid(),
    "groups": os.getgroups(), "cwd": os.getcwd(), "home": os.path.expanduser("~"), "temporary": tempfile.gettempdir()}))
"""


def _told(settings: TargetConfig) -> dict[str, Any]:
    client = AgentClient(build_target("t", settings), operator="ana@desk")
    said = b""
    for message in client.stream("exec", {"argv": [client.target.python, "-c", TELL]}):
        if message["type"] == "record":
            said += message["record"]
    return dict(json.loads(said))


def _check(settings: TargetConfig, name: str, folder: str) -> None:
    told = _told(settings)
    assert (told["USER"], told["LOGNAME"], told["getuser"]) == (name, name, name)
    assert (told["HOME"], told["home"], told["cwd"]) == (folder, folder, folder)
    assert (told["TMPDIR"], told["temporary"], told["LC_ALL"]) == ("/tmp", "/tmp", "C.UTF-8")
    assert told["encoding"] == "utf-8"
    assert "/usr/bin" in told["PATH"].split(":")
    assert told["SHELL"].startswith("/bin/")
    assert (told["uid"] == 0) == (name == "root")


@pytest.mark.parametrize("combination", combinations(["docker", "lxc", "pct"]), indirect=True)
@pytest.mark.parametrize("user", ["root", USER])
def test_a_process_inside_knows_who_it_is(host: Any, place: Place, user: str) -> None:
    inside = place if user == "root" else place.as_user(user)
    settings = TargetConfig.model_validate(inside.settings(host=host, home="~/.opsctl"))
    _check(settings, user, "/root" if user == "root" else f"/home/{user}")


@pytest.mark.parametrize("combination", combinations(["docker"]), indirect=True)
def test_a_user_that_is_only_a_number_has_a_name(host: Any, place: Place) -> None:
    settings = place.as_user("12345").settings(host=host, home="/tmp/opsctl-of-12345")
    _check(TargetConfig.model_validate(settings), "12345", "/")


def _on_a_terminal(argv: tuple[str, ...]) -> tuple[int, str]:
    """The status and the output of a command on a terminal of its own."""
    leader, follower = pty.openpty()
    # a terminal that controls its session, as that of a person does: lxc-attach asks for /dev/tty
    process = subprocess.Popen(("setsid", "--ctty", "--wait", *argv), stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    said = b""
    with contextlib.suppress(OSError):  # the terminal's last user left it
        while data := os.read(leader, 4096):
            said += data
    os.close(leader)
    return process.wait(60), said.decode()


def test_a_terminal_inside_is_a_real_one(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "vt220")
    argv = target.interactive_argv(("sh", "-c", 'test -t 0 && tty && echo "<$TERM>"; exit 42'))
    status, said = _on_a_terminal(argv)
    assert status == 42
    assert "/dev/pts/" in said
    assert "<vt220>" in said
