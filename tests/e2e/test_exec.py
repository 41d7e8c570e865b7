"""`opsctl exec`, `shell`, `put` and `get` as a person or a script meets them: statuses, pipes, keys, signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Ended
from tests.support.left import agents, sleeping, unique_nap
from tests.support.sshd import Sshd, free_port
from tests.support.terminal import Terminal
from tests.support.until import until

HOSTS = [pytest.param("here", id="local"), pytest.param("far", id="ssh", marks=pytest.mark.ssh)]


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "target home")


@pytest.fixture(params=HOSTS)
def name(request: pytest.FixtureRequest, project: Path, home: str) -> str:
    """A target: this machine, or the same by SSH."""
    common = {"home": home, "python": sys.executable}
    targets = {"here": common}
    if request.param == "far":
        targets["far"] = {**common, "host": request.getfixturevalue("sshd").settings}
    gone = {"ssh": "root@127.0.0.1", "port": free_port(), "connect_timeout_s": 1}
    targets["gone"] = {**common, "host": gone}
    (project / "opsctl.yaml").write_text(json.dumps({"default_target": request.param, "targets": targets}))
    return request.param


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--", "sh", "-c", "exit 42"), 42),
        (("sh", "-c", "exit 255"), 255),
        (("--", "sh", "-c", "kill -KILL $$"), 137),
        (("--timeout", "0.2", "--", "sleep", "60"), 124),
        (("--", "program-of-nowhere"), 125),
        (("-t", "gone", "--", "true"), 125),
        (("--env", "active", "--", "true"), 125),
    ],
    ids=["42", "255", "killed", "too long", "no program", "no host", "no env"],
)
def test_the_status_is_the_commands_or_says_whose_fault(
    name: str, opsctl: Callable[..., Ended], words: tuple[str, ...], code: int
) -> None:
    ended = opsctl("exec", *words)
    assert ended.code == code
    assert ended.out == ""
    assert bool(ended.err) == (code in (124, 125))


def test_words_after_the_command_are_the_commands(name: str, opsctl: Callable[..., Ended]) -> None:
    words = ("-t", "--json", "it's", "", "--", "-n")
    ended = opsctl("exec", "printf", "%s|", *words).ok()
    assert ended.out == "|".join(words) + "|"


def _exec(project: Path, *words: str, **options: object) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([COMMAND, "exec", *words], cwd=project, **{**pipes, **options})  # type: ignore[call-overload]


def test_what_is_piped_in_comes_out_again(name: str, project: Path) -> None:
    data = bytes(range(256)) * 1000
    done = subprocess.run([COMMAND, "exec", "--", "cat"], cwd=project, input=data, capture_output=True, check=True)
    assert done.stdout == data


def test_without_input_it_is_not_waited_for(name: str, project: Path) -> None:
    """A loop in a shell script keeps its own input."""
    script = f"while read row; do echo $row; {COMMAND} exec -n -- cat; done"
    done = subprocess.run(["sh", "-c", script], cwd=project, input=b"1\n2\n", capture_output=True, check=True)
    assert done.stdout == b"1\n2\n"


@contextlib.contextmanager
def _ready(project: Path, script: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with _exec(
        project, "--", "sh", "-c", f"{script}\necho ready; while :; do sleep 0.05; done", "sh", *words
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        yield caller
        caller.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_go_to_the_command(name: str, project: Path, number: signal.Signals) -> None:
    with _ready(project, 'trap "exit 40" INT; trap "exit 41" TERM') as caller:
        caller.send_signal(number)
        assert caller.wait(60) == (40 if number is signal.SIGINT else 41)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_the_call_and_what_it_started(
    name: str, project: Path, home: str, number: signal.Signals, code: int
) -> None:
    nap = unique_nap()
    with _ready(project, 'trap "echo heard" INT TERM; setsid sleep "$1" &', nap) as caller:
        caller.send_signal(number)
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"heard\n"
        caller.send_signal(number)
        assert caller.wait(60) == code
    until(lambda: not sleeping(nap) and not agents(home))


def test_a_reader_that_goes_away_ends_it_all(name: str, project: Path, home: str) -> None:
    with _exec(project, "--", "yes") as caller:
        assert caller.stdout is not None
        caller.stdout.read(1000)
        caller.stdout.close()
        assert caller.wait(60) == 141
    until(lambda: not agents(home))


@pytest.mark.tmux
def test_a_shell_is_a_terminal_that_follows_the_window(name: str, project: Path, tmp_path: Path) -> None:
    script = "tty; stty size; until [ \"$(stty size)\" = '15 70' ]; do sleep 0.05; done; read key; stty size; exit 7"
    terminal = Terminal(
        (str(COMMAND), "shell", "-t", name, "--", "sh", "-c", script),
        folder=project, socket=tmp_path / "tmux", width=90, height=20,
    )  # fmt: skip
    try:
        terminal.wait_for("/dev/pts/", "20 90")
        subprocess.run(["tmux", "-S", tmp_path / "tmux", "resize-window", "-x", "70", "-y", "15"], check=True)
        terminal.press("Enter")
        terminal.wait_for("15 70", "status=7")
    finally:
        terminal.close()


def test_a_shell_needs_a_terminal_and_a_host(name: str, opsctl: Callable[..., Ended]) -> None:
    assert (opsctl("shell").code, "needs a terminal" in opsctl("shell").err) == (125, True)


def test_files_go_there_and_back(name: str, project: Path, opsctl: Callable[..., Ended], tmp_path: Path) -> None:
    (project / "f").write_text("mine")
    put = opsctl("put", "f", f"{tmp_path}/far", "--json").ok().json()
    assert (put["path"], put["num_files"], put["num_bytes"]) == (f"{tmp_path}/far", 1, 4)
    assert "1 file" in opsctl("get", f"{tmp_path}/far").ok().out
    assert (project / "far").read_text() == "mine"
    assert opsctl("get", f"{tmp_path}/nothing").code == 2


def test_the_ssh_host_is_the_one_that_answers(project: Path, sshd: Sshd, opsctl: Callable[..., Ended]) -> None:
    (project / "opsctl.yaml").write_text(json.dumps({"default_target": "t", "targets": {"t": {"host": sshd.settings}}}))
    ended = opsctl("exec", "--", "sh", "-c", "echo $SSH_CONNECTION").ok()
    assert ended.out.split()[-1] == str(sshd.port)
