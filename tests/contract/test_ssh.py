"""SshHost against a real sshd: host keys, keys to log in, clear refusals, one link for all, both streams."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.errors import Unreachable
from opsctl.records import Outcome
from opsctl.target.command import Argv
from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings
from tests.support.sshd import Sshd, free_port, known_line, make_key, running_sshd, write_client_config
from tests.support.until import until

pytestmark = pytest.mark.ssh

Reach = Callable[..., SshHost]


@pytest.fixture
def files(sshd: Sshd, tmp_path: Path) -> Path:
    """A folder of client files that a test may change: ssh_config, known_hosts, key."""
    folder = tmp_path / "client"
    folder.mkdir()
    for name in ("key", "key.pub", "host_key.pub"):
        shutil.copy(sshd.folder / name, folder)
    write_client_config(folder, sshd.port)
    return folder


@pytest.fixture
def reach(files: Path) -> Iterator[Reach]:
    """Hosts by their settings; their links are closed at the end."""
    with contextlib.ExitStack() as stack:

        def build(destination: str = "box", **settings: object) -> SshHost:
            given = SshSettings(destination, ssh_config=str(files / "ssh_config"), connect_timeout_s=3.0)
            host = SshHost(dataclasses.replace(given, **settings))
            stack.callback(host.close)
            return host

        yield build


def ran(host: SshHost, *argv: str) -> tuple[bytes, str, Outcome]:
    """Both streams of a command, and its outcome."""
    channel = host.start(argv)
    with contextlib.closing(channel):
        output = b""
        while data := channel.read(20.0):
            output += data
        return output, channel.error_tail(), channel.outcome(5.0)


def refused(host: SshHost, argv: Argv = ("true",)) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        host.start(argv)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


# --- host keys -----------------------------------------------------------------------------------------


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """The public half of a host key that the server does not have."""
    make_key(tmp_path / "stranger")
    return tmp_path / "stranger.pub"


def _logins(sshd: Sshd) -> int:
    """How often somebody tried to log in, with or without success."""
    return sshd.log.count("Accepted") + sshd.log.count("Failed") + sshd.log.count("authenticating user")


def test_an_unknown_host_is_refused_with_its_fingerprint_before_anything_is_sent(
    reach: Reach, files: Path, sshd: Sshd
) -> None:
    (files / "known_hosts").write_text("")
    before = _logins(sshd)
    error = refused(reach())
    shown = subprocess.run(["ssh-keygen", "-lf", sshd.folder / "host_key.pub"], capture_output=True, text=True).stdout
    assert shown.split()[1] in error.message
    assert f"127.0.0.1 port {sshd.port} is not known" in error.message
    assert f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {files}/known_hosts" in error.hint
    assert _logins(sshd) == before
    assert (files / "known_hosts").read_text() == ""


def test_a_new_host_is_recorded_where_that_is_asked_for(reach: Reach, files: Path, sshd: Sshd) -> None:
    (files / "known_hosts").write_text("# mine\n")
    assert ran(reach(host_keys="accept-new"), "echo", "in")[0] == b"in\n"
    assert (files / "known_hosts").read_text() == "# mine\n" + known_line(sshd.folder / "host_key.pub", sshd.port)
    assert ran(reach(), "echo", "strict")[0] == b"strict\n"


def test_a_recorded_name_is_hashed_where_ssh_config_says_so(reach: Reach, files: Path) -> None:
    (files / "known_hosts").unlink()
    (files / "ssh_config").write_text((files / "ssh_config").read_text() + "  HashKnownHosts yes\n")
    ran(reach(host_keys="accept-new"), "true")
    assert (files / "known_hosts").read_text().startswith("|1|")
    assert ran(reach(), "echo", "again")[0] == b"again\n"


@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_changed_key_is_refused_whatever_the_rule(
    reach: Reach, files: Path, sshd: Sshd, stranger: Path, host_keys: str
) -> None:
    (files / "known_hosts").write_text(known_line(stranger, sshd.port))
    before = _logins(sshd)
    error = refused(reach(host_keys=host_keys))
    assert "has changed" in error.message
    assert f"{files}/known_hosts:1" in error.message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}'" in error.hint
    assert _logins(sshd) == before


def test_a_revoked_key_is_refused(reach: Reach, files: Path, sshd: Sshd) -> None:
    row = known_line(sshd.folder / "host_key.pub", sshd.port)
    (files / "known_hosts").write_text(f"{row}@revoked * {' '.join(row.split()[1:])}\n")
    assert "revoked" in refused(reach(host_keys="accept-new")).message


def test_damaged_and_foreign_rows_are_passed_over(reach: Reach, files: Path, sshd: Sshd) -> None:
    row = known_line(sshd.folder / "host_key.pub", sshd.port)
    name = row.split()[0]
    (files / "known_hosts").write_text(f"{name} ssh-ed25519 !!!\n{name} ssh-none AAAA\n@cert-authority * {name}\n{row}")
    assert ran(reach(), "echo", "in")[0] == b"in\n"


def test_the_known_type_of_key_is_asked_for(files: Path, tmp_path: Path) -> None:
    """A server with several keys shows the one that is known, though another comes first by default."""
    (tmp_path / "server").mkdir()
    settings = [f"HostKey {tmp_path}/server/rsa"]
    make_key(tmp_path / "server" / "rsa", "-t", "rsa")
    with running_sshd(tmp_path / "server", settings=settings) as server:
        (server.folder / "known_hosts").write_text(known_line(server.folder / "rsa.pub", server.port))
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        assert ran(host, "echo", "in")[0] == b"in\n"
        host.close()


# --- keys to log in ------------------------------------------------------------------------------------


def test_a_key_that_the_host_does_not_know_is_named(reach: Reach, files: Path, stranger: Path) -> None:
    (files / "ssh_config").write_text((files / "ssh_config").read_text().replace(f"{files}/key", f"{files}/none"))
    key = stranger.with_suffix("")
    error = refused(reach(key_file=str(key)))
    assert f"{key}: refused" in error.message
    assert "authorized_keys" in error.hint


def test_a_key_with_a_passphrase_is_explained(reach: Reach, files: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", files / "key"], check=True)
    assert f"ssh-add {files}/key" in refused(reach()).message


@contextlib.contextmanager
def _agent(key: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = key.parent / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        until(path.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        subprocess.run(["ssh-add", "-q", key], check=True)
        yield
    finally:
        agent.terminate()
        agent.wait()


def _let_the_agent_speak(files: Path) -> None:
    config = (files / "ssh_config").read_text().replace("  IdentityAgent none\n", "")
    (files / "ssh_config").write_text(config)


def test_the_agents_key_opens_what_only_its_public_half_names(
    reach: Reach, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _let_the_agent_speak(files)
    with _agent(files / "key", monkeypatch):
        (files / "key").unlink()
        assert ran(reach(), "echo", "in")[0] == b"in\n"


def test_an_agent_that_hangs_costs_seconds_and_not_the_login(
    reach: Reach, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _let_the_agent_speak(files)
    monkeypatch.setattr("opsctl.target.ssh_identities._AGENT_LIMIT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "agent"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        assert ran(reach(), "echo", "in")[0] == b"in\n"


# --- hosts that do not answer ------------------------------------------------------------------------


def test_a_port_where_nobody_listens_is_named(reach: Reach) -> None:
    port = free_port()
    assert f"port {port}: Connection refused" in refused(reach(port=port)).message


def test_a_name_without_an_address_is_named(reach: Reach) -> None:
    assert "no address for 'nowhere.invalid'" in refused(reach("nowhere.invalid")).message


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-mute\r\n", b"220 smtp ready\r\n"])
def test_a_server_that_falls_silent_or_speaks_no_ssh_is_told_in_time(reach: Reach, banner: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, banner), daemon=True).start()
        port = server.getsockname()[1]
        start = time.monotonic()
        error = refused(reach(port=port, connect_timeout_s=1.0))
        assert time.monotonic() - start < 4.0
        assert f"port {port}" in error.message


def _answer(server: socket.socket, banner: bytes) -> None:
    link, _ = server.accept()
    with link:
        link.sendall(banner)
        while link.recv(1000):
            pass


def test_a_server_that_hangs_up_does_not_keep_us_from_ending(files: Path) -> None:
    """paramiko's handshake timer would hold the process for its whole limit."""
    script = (
        "import sys; from opsctl.target.ssh import SshHost; from opsctl.target.ssh_endpoint import SshSettings\n"
        "settings = SshSettings('box', ssh_config=sys.argv[1], port=int(sys.argv[2]), connect_timeout_s=60)\n"
        "SshHost(settings).start(('true',))"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = subprocess.Popen(
            [sys.executable, "-c", script, files / "ssh_config", str(server.getsockname()[1])], stderr=subprocess.PIPE
        )
        link, _ = server.accept()
        link.sendall(b"SSH-2.0-brief\r\n")
        link.recv(100)
        link.close()
        _, errors = caller.communicate(timeout=20)
    assert b"Unreachable" in errors
    assert b"Exception (client)" not in errors  # paramiko's own log


def test_no_key_of_ours_may_run_commands(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "server", settings=["ForceCommand exit 9"]) as server:
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        assert ran(host, "true")[2] == Outcome("exited", code=9)
        host.close()


def test_more_sessions_than_sshd_allows_are_refused_and_leave_the_link_whole(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "server", settings=["MaxSessions 1"]) as server:
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        with contextlib.closing(host.start(("cat",))):
            assert "MaxSessions" in refused(host).hint
        until(lambda: _is_served(host))
        assert server.log.count("Accepted") == 1
        host.close()


def _is_served(host: SshHost) -> bool:
    with contextlib.suppress(Unreachable):  # sshd is still clearing the session up
        return ran(host, "echo", "again")[0] == b"again\n"
    return False


# --- hops ---------------------------------------------------------------------------------------------


def test_hops_are_passed_under_the_same_rule(reach: Reach, files: Path, sshd: Sshd) -> None:
    output, _, _ = ran(reach(jump="box,box"), "sh", "-c", "echo $SSH_CLIENT")
    assert output.startswith(b"127.0.0.1")
    (files / "known_hosts").write_text("")
    assert "is not known" in refused(reach(jump="box")).message


def test_the_error_names_the_hop_that_failed(reach: Reach) -> None:
    port = free_port()
    assert f"port {port}" in refused(reach(jump=f"{getpass.getuser()}@127.0.0.1:{port}")).message


def test_a_host_that_the_hop_cannot_reach_is_named(reach: Reach) -> None:
    port = free_port()
    assert f"port {port}" in refused(reach(port=port, jump="box", destination="box")).message


def test_a_proxy_command_is_used(reach: Reach, files: Path) -> None:
    netcat = f"{sys.executable} -c 'import os, socket, sys, threading; s = socket.create_connection((sys.argv[1], "
    netcat += "int(sys.argv[2]))); threading.Thread(target=lambda: [s.sendall(d) for d in iter(lambda: "
    netcat += 'os.read(0, 65536), b"")], daemon=True).start(); [os.write(1, d) for d in iter(lambda: '
    netcat += 's.recv(65536), b"")]\' %h %p'
    (files / "ssh_config").write_text((files / "ssh_config").read_text() + f"  ProxyCommand {netcat}\n")
    assert ran(reach(), "echo", "through")[0] == b"through\n"


# --- processes ------------------------------------------------------------------------------------------


def test_one_link_serves_all_threads(reach: Reach) -> None:
    host = reach()
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda number: ran(host, "sh", "-c", f"echo {number} $SSH_CLIENT")[0], range(8)))
    assert sorted(int(output.split()[0]) for output in outputs) == list(range(8))
    assert len({output.split()[2] for output in outputs}) == 1  # one port of ours: one connection


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("exit 255", Outcome("exited", code=255)),
        ("kill -TERM $$", Outcome("killed", signal=15)),
        ("kill -KILL $$", Outcome("killed", signal=9)),
    ],
)
def test_statuses_and_signals_are_told_apart(reach: Reach, script: str, outcome: Outcome) -> None:
    assert ran(reach(), "sh", "-c", script)[2] == outcome


def test_a_session_whose_server_dies_is_a_lost_link(reach: Reach, sshd: Sshd) -> None:
    host = reach()
    with contextlib.closing(host.start(("sh", "-c", "echo $PPID; exec sleep 600"))) as channel:
        os.kill(int(channel.read(10.0)), 9)  # sshd's process for this connection
        assert channel.read(10.0) == b""
        assert channel.outcome(5.0) == Outcome("link_lost")
    assert ran(host, "echo", "again")[0] == b"again\n"


def test_a_flood_on_stderr_stops_nothing(reach: Reach) -> None:
    script = "import sys; sys.stderr.write('e' * 30_000_000); print('out', flush=True); sys.stderr.write('last')"
    output, errors, outcome = ran(reach(), sys.executable, "-c", script)
    assert (output, outcome) == (b"out\n", Outcome("exited", code=0))
    assert errors.endswith("elast")


def test_a_long_wait_is_timed_out_and_not_an_end(reach: Reach) -> None:
    with contextlib.closing(reach().start(("cat",))) as channel:
        with pytest.raises(TimeoutError):
            channel.read(0.1)
        assert channel.outcome(0.1) == Outcome("timed_out")
        channel.write(b"\0\xff binary \r\n")
        channel.close_input()
        assert channel.read(10.0) == b"\0\xff binary \r\n"
        assert channel.outcome(10.0) == Outcome("exited", code=0)


def test_writing_to_a_process_that_left_is_a_broken_pipe(reach: Reach) -> None:
    with contextlib.closing(reach().start(("true",))) as channel:
        channel.outcome(10.0)
        with pytest.raises(BrokenPipeError):
            until(lambda: channel.write(b"x" * 1_000_000) and None)


def test_hostile_words_and_bytes_survive_the_login_shell(reach: Reach) -> None:
    words = ("$HOME `id` \"'\\ *", "", "\n\t", "-n", "it's", os.fsdecode(b"\xff\xfe"), "\u2603")
    printer = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    output, _, _ = ran(reach(), "env", "LC_ALL=C.UTF-8", sys.executable, "-c", printer, *words)
    assert output == b"\0".join(map(os.fsencode, words))
