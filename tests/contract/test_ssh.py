"""SshHost against a real sshd: clear refusals, hops, one link for all, both streams, outcomes."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsctl.errors import Unreachable
from opsctl.records.call import Outcome
from opsctl.target.ssh import SshHost
from opsctl.target.ssh_endpoint import SshSettings
from tests.support.reach import Reach, files, ran, reach, refused
from tests.support.sshd import Sshd, free_port, running_sshd
from tests.support.until import until

__all__ = ["files", "reach"]
pytestmark = pytest.mark.ssh

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
        assert time.monotonic() - start < 12.0  # paramiko itself waits longer
        assert f"port {port}" in error.message


def _answer(server: socket.socket, banner: bytes) -> None:
    with contextlib.suppress(OSError):  # the caller hangs up as it likes
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


def test_new_keys_in_mid_stream_break_nothing(tmp_path: Path) -> None:
    """sshd asks for new session keys after each megabyte, as it does after hours on a real link."""
    with running_sshd(tmp_path / "server", settings=["RekeyLimit 1M"]) as server:
        host = SshHost(SshSettings("box", ssh_config=str(server.ssh_config)))
        with contextlib.closing(host.start(("cat",))) as channel:
            writer = threading.Thread(target=lambda: [channel.write(bytes(1_000_000)) for _ in range(10)])
            writer.start()
            size = 0
            while size < 10_000_000:
                size += len(channel.read(10.0))
            writer.join()
        host.close()


def test_a_link_is_replaced_without_ending_what_runs_on_it(reach: Reach) -> None:
    host = reach()
    with contextlib.closing(host.start(("cat",))) as channel:
        (link,) = host._links
        host._drop(link)
        assert ran(host, "echo", "new link")[0] == b"new link\n"
        assert host._links != [link]
        channel.write(b"old link\n")
        assert channel.read(10.0) == b"old link\n"
    until(lambda: not link.is_alive())
